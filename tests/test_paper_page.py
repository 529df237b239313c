"""docs/paper.md: its commands run, and those of pytest run the tests that it names (its links: test_docs.py).

Its commands of pytest do not run here: they would run tests of this session again.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.clone import ROOT, Clone, tiny_clone
from tests.models.on_disk import write_model
from transformer_core.cli import main
from transformer_core.models.architectures import build
from transformer_core.presets import TransformerSize

TEXT = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
PYTEST = "python -m pytest -q "
COMMANDS = re.findall(r"`\.venv/bin/transformer-core ([^`]+)`", TEXT)
SENTENCES = ["He has lost his way.", "The old dog sees his cat.", "Er hat sich verlaufen.", "Der alte Hund sieht seine Katze."]


def test_the_command_of_pytest_of_a_section_runs_every_test_that_the_section_names() -> None:
    sections = [section for section in re.split("^## ", TEXT, flags=re.MULTILINE) if PYTEST in section]
    assert [section[0] for section in sections] == ["1", "3", "5", "6"]
    for section in sections:
        (files,) = re.findall(rf"{PYTEST}([^`]+)`", section)
        assert set(re.findall(r"\[`test_\w+`\]\(\.\./([^)]+)\)", section)) == set(files.split())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy of the repository with a model of two layers, its weights as they are drawn, where `make repro` puts the trained one."""
    made = tiny_clone(tmp_path_factory.mktemp("repository"))
    size = TransformerSize(layers=2, d_model=16, d_ff=16, heads=4, d_k=4, d_v=4, dropout=0.0)
    torch.manual_seed(1)
    write_model(build(size, 60), made.root / "models/averaged", SENTENCES)
    return made


@pytest.mark.slow  # About 15 seconds all together.
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = shlex.split(command)
    monkeypatch.chdir(clone.root)
    if arguments[0] == "recipe":
        Path("params.yaml").unlink()  # The clone's is an edited one.
    assert main(arguments) == 0  # Within this process: torch is imported once.
