"""A directory for CTranslate2: what is in it, what it replaces, what is refused; and the exports that are kept in the user's cache."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import ctranslate2
import pytest

from tests.models.on_disk import VOCAB, write_drawn
from tests.refusals import refused
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.decoding import ctranslate2_export as module
from transformer_core.decoding.ctranslate2_export import TABLE_POSITIONS, cached_export, export_model, unsupported
from transformer_core.errors import UserError
from transformer_core.models.architectures import build
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=1, d_model=32, d_ff=16, heads=2, d_k=16, d_v=16, dropout=0.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_drawn(tmp_path / "model", SIZE)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(directory: Path, out: Path) -> str:
    """The line of an export that must fail, as bad configuration and leaving nothing behind."""
    before = sorted(out.parent.rglob("*"))
    with refused(78) as error:
        export_model(directory, out)
    assert sorted(out.parent.rglob("*")) == before
    return str(error.value)


def test_the_directory_holds_weights_settings_vocabulary_and_the_subword_model(directory: Path, tmp_path: Path) -> None:
    export_model(directory, tmp_path / "out")
    assert names(tmp_path / "out") == ["config.json", "model.bin", "search.json", "shared_vocabulary.json", "spm.model"]
    assert (tmp_path / "out/spm.model").read_bytes() == (directory / "spm.model").read_bytes()
    assert json.loads((tmp_path / "out/shared_vocabulary.json").read_text(encoding="utf-8"))[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    settings = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert (settings["decoder_start_token"], settings["eos_token"], settings["add_source_eos"]) == ("<s>", "</s>", True)


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_a_shared_matrix_is_written_once(tied: Literal["all", "decoder", "none"], tmp_path: Path) -> None:
    size = replace(SIZE, tied=tied)
    export_model(write_drawn(tmp_path / "model", size), tmp_path / "out")
    numbers = sum(parameter.numel() for parameter in build(size, VOCAB).parameters()) + TABLE_POSITIONS * SIZE.d_model
    # Names and shapes take some 40 bytes each, of fewer than 60 entries; one matrix more would take 5 kB.
    assert 0 < (tmp_path / "out/model.bin").stat().st_size - 4 * numbers < 4 * VOCAB * SIZE.d_model


def test_what_ctranslate2_cannot_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name, size in (("recurrent", RecurrentSize), ("convolutional", ConvolutionalSize)):
        directory = write_drawn(tmp_path / name, size(layers=1, d_model=8, dropout=0.0))
        assert refusal(directory, tmp_path / "out") == f"{directory}: CTranslate2 has no {name} model"


def test_a_setting_that_the_export_does_not_know_is_refused_unless_it_has_its_default() -> None:
    @dataclass(frozen=True)
    class WithInvented(TransformerSize):
        invented: str = "none"

    assert unsupported(WithInvented(**asdict(SIZE), invented="some")) == "its invented (some) cannot be converted to CTranslate2"
    assert not unsupported(WithInvented(**asdict(SIZE)))


def test_an_earlier_export_is_replaced_and_an_empty_directory_filled(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_model(directory, tmp_path / "out")
    (tmp_path / "out/model.bin").write_bytes(b"old")
    export_model(directory, tmp_path / "out")
    assert (tmp_path / "out/model.bin").stat().st_size > 3


def test_what_is_no_export_is_kept(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").touch()
    (tmp_path / "file").touch()
    for out in (directory, tmp_path / "mine", tmp_path / "file"):
        assert refusal(directory, out) == f"{out}: exists and is no exported model. Name another directory or remove it."


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kept exports, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/transformer-pipeline/ctranslate2"


def exported(directory: Path) -> Path:
    with cached_export(directory) as export:
        assert ctranslate2.contains_model(str(export))
        return export


@pytest.mark.usefixtures("cache")
def test_a_model_is_converted_once_and_a_copy_of_it_not_at_all(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    first = exported(directory)
    monkeypatch.delattr(module, "export_model")
    assert exported(directory) == exported(shutil.copytree(directory, tmp_path / "copy")) == first
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before


@pytest.mark.usefixtures("cache")
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


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "damaged"),
    [("model.bin", b"other"), ("shared_vocabulary.json", None), ("vmap.txt", b""), ("sums.json", None), ("sums.json", b"{")],
    ids=["another content", "a missing file", "one more file", "no sums", "no JSON"],
)
def test_a_damaged_export_is_made_again(name: str, damaged: bytes | None, directory: Path) -> None:
    export = exported(directory)
    good = {path.name: path.read_bytes() for path in export.iterdir()}
    if damaged is None:
        (export / name).unlink()
    else:
        (export / name).write_bytes(damaged)
    assert exported(directory) == export
    assert {path.name: path.read_bytes() for path in export.iterdir()} == good


def test_only_the_exports_used_last_are_kept(directory: Path, cache: Path) -> None:
    used = exported(directory)
    for number in range(10):
        other = cache / f"{number}"
        other.mkdir()
        os.utime(other, (number, number))
    exported(directory)
    assert sorted(path.name for path in cache.glob("[!.]*")) == sorted([used.name, *"3456789"])


@pytest.mark.usefixtures("cache")
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


@pytest.mark.usefixtures("cache")
def test_a_damaged_model_is_refused_although_an_export_of_the_whole_one_is_kept(directory: Path) -> None:
    exported(directory)
    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"model\.safetensors: damaged, its SHA-256 is not that of"):
        exported(directory)
