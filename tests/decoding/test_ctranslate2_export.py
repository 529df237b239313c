"""A directory for CTranslate2: what is in it, what it replaces, and what is refused."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from tests.models.on_disk import VOCAB, write_drawn
from transformer_core.decoding.ctranslate2_export import TABLE_POSITIONS, export_model, unsupported
from transformer_core.models.architectures import build
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=1, d_model=32, d_ff=16, heads=2, d_k=16, d_v=16, dropout=0.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_drawn(tmp_path / "model", SIZE)


def test_the_directory_holds_weights_settings_vocabulary_and_the_subword_model(directory: Path, tmp_path: Path) -> None:
    export_model(directory, tmp_path / "out")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "model.bin", "search.json", "shared_vocabulary.json", "spm.model"}
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
