"""DVC sees a change of the user's own text, wherever it is, and restores what was made of it where the text is missing."""

import pytest

from tests.clone import Clone, tiny_clone

pytestmark = pytest.mark.slow  # about 40 seconds all together: a clone with commands of DVC in it

STAGES = ("local_files", "download")
COMMAND = ("transformer-core", "data")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose corpus `own` is own.en in it and own.de outside, with the outputs of both stages. Each test goes on with it."""
    root = tmp_path_factory.mktemp("own") / "clone"
    (root / "data").mkdir(parents=True)
    clone = tiny_clone(root)
    append(clone, 0, 200)
    clone.run(*COMMAND, "new", "own", "data/own.en", "../own.de", "--force")
    clone.commit("own")
    clone.run("dvc", "repro", *STAGES)
    return clone


def append(clone: Clone, first: int, last: int) -> None:
    for file in ("data/own.en", "../own.de"):
        with (clone.root / file).open("a", encoding="utf-8") as opened:
            opened.writelines(f"{file[-2:]} {number}\n" for number in range(first, last))


def held_out(clone: Clone) -> list[bytes]:
    return [(clone.root / f"data/raw/{split}.{language}").read_bytes() for split in ("valid", "test") for language in ("en", "de")]


def test_a_clone_without_the_text_gets_the_outputs_from_the_cache(clone: Clone) -> None:
    text, moved = clone.root.parent / "own.de", clone.root.parent / "moved.de"
    clone.run("git", "clone", "-q", ".", "../other")
    other = Clone(clone.root.parent / "other")
    other.run("dvc", "cache", "dir", "--local", str(clone.root / ".dvc/cache"))
    text.rename(moved)
    done = other.run("dvc", "repro", *STAGES)
    moved.rename(text)
    assert "local_files: own, local files: 4; not checked, because not all files are here: 1 of its sources\n" in done
    assert "Stage 'download' is cached - skipping run" in done
    assert held_out(other) == held_out(clone)


def test_a_change_of_local_text_is_detected_and_applied_by_an_update(clone: Clone) -> None:
    assert clone.run("dvc", "status", *STAGES) == "Data and pipelines are up to date.\n"
    before = held_out(clone)
    append(clone, 200, 400)
    status = clone.run("dvc", "status", *STAGES)
    assert status == "local_files:\n\tchanged deps:\n\t\tmodified:           local_files\n"
    refused = clone.run("dvc", "repro", *STAGES, code=255)
    assert "data/own.en: wrong sha256: wanted " in refused
    assert "or correct the sum in corpora/own.yaml: transformer-core data update own.\n" in refused
    clone.run(*COMMAND, "update", "own")
    assert "data/raw: own, en to de, pairs: train 400, valid 20, test 20\n" in clone.run("dvc", "repro", *STAGES)
    assert held_out(clone) == before
    assert clone.run("dvc", "status", *STAGES) == "Data and pipelines are up to date.\n"


def test_without_sums_in_the_entry_a_change_is_seen_by_those_of_data_raw(clone: Clone) -> None:
    entry = clone.root / "corpora/own.yaml"
    lines = entry.read_text(encoding="utf-8").splitlines(keepends=True)
    entry.write_text("".join(line for line in lines if "sha256" not in line), encoding="utf-8")
    clone.run("dvc", "repro", *STAGES)
    append(clone, 400, 401)
    refused = clone.run("dvc", "repro", *STAGES, code=255)
    assert "corpora/own.yaml: ../data/own.en has changed since data/raw was made. Make it again: dvc repro --force download\n" in refused
    clone.run("dvc", "repro", "--force", "download")
    assert "local_files: own, local files: 6\n" in clone.run("dvc", "repro", *STAGES)


def test_files_of_the_package_are_no_local_files(clone: Clone) -> None:
    clone.run("transformer-core", "recipe", "tatoeba", "--force")
    assert "local_files: tatoeba, local files: 0\n" in clone.run("dvc", "repro", "local_files")
