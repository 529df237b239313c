"""A change of the user's own text is seen by DVC, wherever the text is; nothing but that needs the text again."""

import shutil
from pathlib import Path

import pytest

from tests.clone import Clone, tiny_clone

STAGES = ("local_files", "download")
UP_TO_DATE = "Data and pipelines are up to date.\n"


def append(file: Path, lines: list[str]) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(f"{line}\n" for line in lines)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clone whose corpus `own` is own.en in the clone and own.de outside, and the outputs of both stages."""
    root = tmp_path_factory.mktemp("own")
    (root / "clone").mkdir()
    clone = tiny_clone(root / "clone")
    append(clone.root / "data/own.en", []) if (clone.root / "data").mkdir() else append(clone.root / "data/own.en", words("dog"))
    append(root / "own.de", words("Hund"))
    clone.run("transformer-core", "data", "new", "own", "data/own.en", "../own.de", "--force")
    clone.commit("own")
    clone.run("dvc", "repro", *STAGES)
    return root


def words(noun: str, first: int = 0, last: int = 200) -> list[str]:
    return [f"{noun} {number}" for number in range(first, last)]


@pytest.fixture
def clone(prepared: Path, tmp_path: Path) -> Clone:
    """A copy of it, moved: own.en is in it, own.de beside it, where the entry of the original names it."""
    shutil.copytree(prepared, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Clone(tmp_path / "clone")
