from pathlib import Path

import pytest

from tests.fuzz.fuzzer import run
from tests.fuzz.readers import READERS


# Of each reader; the long run is `python -m tests.fuzz`.
@pytest.mark.parametrize("numbers", [range(15), pytest.param(range(15, 200), marks=pytest.mark.slow)], ids=["some", "many"])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_words(tmp_path: Path, name: str, numbers: range) -> None:
    findings = run(READERS[name], numbers, seed=1, folder=tmp_path).findings
    assert [(finding.number, finding.fault) for finding in findings] == [], findings[0].trace
