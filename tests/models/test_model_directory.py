"""A model directory goes out and comes back whole, or says in one line why not."""

from pathlib import Path

import pytest
import torch

from transformer_core.errors import UserError
from transformer_core.models.directory import ModelConfig, Training, Vocabulary, load_model, save_model
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=1, d_model=8, d_ff=16, heads=2, d_k=4, d_v=4, dropout=0.1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "given.model").write_bytes(b"subwords")
    config = ModelConfig(
        model=SIZE,
        vocabulary=Vocabulary(size=11, hash="0" * 64),
        source="en",
        target="de",
        training=Training(fingerprint="f" * 64, updates=3, target_tokens=100, seconds=1.5),
    )
    torch.manual_seed(0)
    save_model(tmp_path / "model", Transformer(SIZE, 11).state_dict(), config, tmp_path / "given.model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_as_it_was(directory: Path) -> None:
    model, config = load_model(directory)
    torch.manual_seed(0)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), Transformer(SIZE, 11).state_dict().values(), strict=True))
    assert config.model == SIZE
    assert not model.training
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors", "spm.model"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_one_line(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(UserError, match=f"{name}: no such file"):
        load_model(directory)


def test_truncated_weights_are_one_line(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError) as caught:
        load_model(directory)
    assert str(caught.value).startswith(f"{weights}: not the weights of")
    assert "\n" not in str(caught.value)


def test_weights_of_another_size_are_one_line(directory: Path) -> None:
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"d_ff": 16', '"d_ff": 32'))
    with pytest.raises(UserError, match="not the weights of"):
        load_model(directory)
