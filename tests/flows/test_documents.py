"""JSON files of stages: one that is wrong names the stage to run again. tests/fuzz/test_structures.py damages each of them everywhere."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.process.paths import MANIFEST, SCORES, TRAINING_METRICS
from flows.record.documents import CLEANING, DECODING, read_output, read_scores
from tests.flows.publishing import FIGURES
from tests.refusals import refused
from transformer_core.files import write_json
from transformer_core.tasks import TREES, task_of

READERS: dict[Path, tuple[str, Callable[[], object]]] = {
    MANIFEST: ("download", lambda: read_output(MANIFEST)),
    CLEANING: ("clean", lambda: read_output(CLEANING)),
    TRAINING_METRICS: ("train", lambda: read_output(TRAINING_METRICS)),
    DECODING: ("decode", lambda: read_output(DECODING)),
    SCORES: ("evaluate", read_scores),
}


@pytest.mark.usefixtures("empty_directory")
@pytest.mark.parametrize("content", [b"[]", b"{}", b"{"])
def test_a_wrong_file_is_one_line_that_names_it_and_the_stage_to_run_again(content: bytes) -> None:
    for path, (stage, read) in READERS.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with refused(65, rf"^{path}: .*\. Make it again with: dvc repro --force --single-item {stage}$"):
            read()


@pytest.mark.usefixtures("empty_directory")
def test_a_right_file_is_read_as_it_is() -> None:
    write_json(SCORES, {**FIGURES, "another_key": [1]})
    assert json.dumps(read_scores()) == json.dumps({**FIGURES, "another_key": [1]})
    with refused(65, r"^results/scores\.json: f1: missing\. Make it again with: dvc repro --force --single-item evaluate$"):
        read_scores(task_of(TREES))
