"""docs/paper.md: every item of the paper has its place, its counts are right and its commands run (its links: test_docs.py).

Its commands of pytest do not run here: they would run tests of this session again.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from tests.clone import ROOT, Clone, tiny_clone
from tests.models.on_disk import write_model
from transformer_core.cli import main
from transformer_core.models.architectures import build, parameters_by_part
from transformer_core.presets import TABLE_3, TransformerSize

TEXT = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
# A command, and the duration in brackets behind it, if there is one.
COMMANDS = dict(re.findall(r"`\.venv/bin/([^`]+)`(?: \((\d+ (?:s|min|h))\))?", TEXT))
PYTEST = "python -m pytest -q "
SHORT = [name for name, duration in COMMANDS.items() if not name.startswith(PYTEST) and (not duration or duration.endswith("s"))]
SENTENCES = ["The dog sees an old cat.", "An old cat sees the dog.", "Der Hund sieht eine alte Katze.", "Eine alte Katze sieht den Hund."]


def test_the_page_has_every_row_of_table_3_with_its_figures_and_our_count() -> None:
    rows = re.findall(r"^\| `(table3/\S+)` \| (\S+) \| (\S+) \| (\d*) ?\| (\S+) \|$", TEXT, re.MULTILINE)
    assert {f"table3/{name}" for name in TABLE_3} == {row[0] for row in rows}
    for name, perplexity, bleu, millions, ours in rows:
        row = TABLE_3[name.removeprefix("table3/")]
        assert (float(perplexity), float(bleu), int(millions) if millions else None) == (row.perplexity, row.bleu, row.millions)
        assert ours == f"{sum(parameters_by_part(row.size, row.vocab_size).values()) / 1e6:.1f}"


def test_a_command_of_pytest_selects_the_tests_that_are_named_behind_it() -> None:
    rows = re.findall(rf"{PYTEST}([\w/.]+)(?: -k (\w+))?`: ([^|]+)", TEXT)
    assert len(rows) == TEXT.count(PYTEST) > 20
    for path, expression, named in rows:
        tests = re.findall(r"\[`(test_\w+)`\]\(\.\./([^)]+)\)", named)
        assert tests, named
        assert all(expression in name and file.startswith(path) for name, file in tests), named


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy of the repository with a model of two layers, its weights as they are drawn, where `make repro` puts the trained one."""
    made = tiny_clone(tmp_path_factory.mktemp("repository"))
    size = TransformerSize(layers=2, d_model=16, d_ff=16, heads=4, d_k=4, d_v=4, dropout=0.0)
    torch.manual_seed(1)
    write_model(build(size, 60), made.root / "models/averaged", SENTENCES)
    return made


@pytest.mark.slow  # About 15 seconds all together.
@pytest.mark.parametrize("command", SHORT)
def test_a_command_of_the_page_runs(command: str, clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = shlex.split(command)
    if program == "transformer-core":  # Within this process: torch is imported once.
        monkeypatch.chdir(clone.root)
        if arguments[0] == "recipe":
            Path("params.yaml").unlink()  # The clone's is an edited one.
        assert main(arguments) == 0
    else:
        assert program == "python"
        clone.run(sys.executable, *arguments)
