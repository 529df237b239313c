"""Kept exports: made once, never those of another model, made again when damaged, few, and not needed where nothing can be kept."""

import os
import shutil
from pathlib import Path

import ctranslate2
import pytest

from tests.models.on_disk import write_drawn
from transformer_core.errors import UserError
from transformer_core.export import cache as module
from transformer_core.export.cache import cached_export


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kept exports, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/transformer-pipeline/ctranslate2"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_drawn(tmp_path / "model")


def exported(directory: Path) -> Path:
    with cached_export(directory) as export:
        assert ctranslate2.contains_model(str(export))
        return export


def test_a_model_is_converted_once_and_a_copy_of_it_not_at_all(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    first = exported(directory)
    monkeypatch.delattr(module, "export_model")
    assert exported(directory) == exported(shutil.copytree(directory, tmp_path / "copy")) == first
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before


@pytest.mark.parametrize("changed", ["weights", "format", "library"])
def test_another_model_format_or_library_has_another_export(changed: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = exported(directory)
    if changed == "weights":
        shutil.rmtree(directory)
        write_drawn(directory, seed=2)
    elif changed == "format":
        monkeypatch.setattr(module, "_FORMAT", 0)
    else:
        monkeypatch.setattr(ctranslate2, "__version__", "4.0.0")
    assert exported(directory) != first


@pytest.mark.parametrize("damage", ["another byte", "a missing file", "one more file", "no sums", "no JSON"])
def test_a_damaged_export_is_made_again(damage: str, directory: Path) -> None:
    export = exported(directory)
    good = (export / "model.bin").read_bytes()
    if damage == "another byte":
        (export / "model.bin").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "a missing file":
        (export / "shared_vocabulary.json").unlink()
    elif damage == "one more file":
        (export / "vmap.txt").touch()
    elif damage == "no sums":
        (export / "sums.json").unlink()
    else:
        (export / "sums.json").write_bytes(b"{")
    assert exported(directory) == export
    assert (export / "model.bin").read_bytes() == good
    assert sorted(path.name for path in export.iterdir()) == [
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "spm.model",
        "sums.json",
    ]


def test_only_the_exports_used_last_are_kept(directory: Path, cache: Path) -> None:
    used = exported(directory)
    for number in range(10):
        other = cache / f"{number}"
        other.mkdir()
        os.utime(other, (number, number))
    exported(directory)
    assert sorted(path.name for path in cache.glob("[!.]*")) == sorted([used.name, *"3456789"])


@pytest.mark.parametrize("hindrance", ["a file for the folder", "no home"])
def test_where_nothing_can_be_kept_the_export_is_temporary(
    hindrance: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hindrance == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
        monkeypatch.chdir(tmp_path)
    else:
        (tmp_path / "cache").touch()
    before = sorted(tmp_path.rglob("*"))
    export = exported(directory)
    assert not export.exists()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_model_is_refused_although_an_export_of_the_whole_one_is_kept(directory: Path) -> None:
    exported(directory)
    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"model\.safetensors: damaged, its SHA-256 is not that of"):
        exported(directory)
