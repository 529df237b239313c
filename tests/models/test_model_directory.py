"""A model directory goes out and comes back whole, or says in one line why not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.on_disk import VOCAB, write_drawn, write_model
from tests.refusals import refused
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.files import read_json, write_json
from transformer_core.models.architectures import build
from transformer_core.models.directory import check_finite, load_model
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize

SIZE = TransformerSize(layers=1, d_model=8, d_ff=16, heads=2, d_k=4, d_v=4, dropout=0.1)
LUONG = RecurrentSize(layers=1, d_model=8, dropout=0.1, decoder="luong", attention="dot", bidirectional=False)
SIZES: dict[str, ModelSize] = {
    "transformer": SIZE,
    "recurrent": replace(LUONG, reverse_source=True),
    "convolutional": ConvolutionalSize(layers=2, d_model=8, dropout=0.1, convolutions=((6, 3, 1), (8, 1, 1))),
    "without positions": replace(SIZE, positions="none"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_drawn(tmp_path / "model", SIZE, seed=0)


def refusal(directory: Path) -> str:
    """Return the line of a directory that must not load."""
    with refused(65) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_a_saved_model_comes_back_as_it_was(size: ModelSize, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build(size, VOCAB).eval()
    directory = write_model(model, tmp_path / "model")
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors", "spm.model"]
    loaded, config = load_model(directory)
    assert config.model == size
    assert not loaded.training
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True))
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 8, 9]])
    with torch.no_grad():
        assert torch.equal(loaded(source, source > 0, target), model(source, source > 0, target))


def test_missing_and_truncated_files_are_one_line(directory: Path) -> None:
    weights, config = directory / "model.safetensors", directory / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refusal(directory).startswith(f"{weights}: damaged, its SHA-256 is not that of {config}. ")
    weights.write_bytes(whole[:-100])
    assert refusal(directory).startswith(f"{weights}: damaged (")
    for file in (weights, config):
        file.unlink()
        assert f"{file}: no such file" in refusal(directory)


def test_other_sizes_than_the_weights_are_refused_before_they_are_allocated(directory: Path, tmp_path: Path) -> None:
    config = directory / "config.json"
    text = config.read_text()
    # A feed-forward network of this width would take 64 GB; so many layers would take minutes to build.
    many = ('"encoder_layers": null', '"encoder_layers": 1000000000')
    for old, new in (('"d_ff": 16', '"d_ff": 32'), ('"d_ff": 16', '"d_ff": 1000000000'), ('"layers": 1', '"layers": 1000000000'), many):
        config.write_text(text.replace(old, new))
        assert "not the weights of" in refusal(directory)
    directory = write_drawn(tmp_path / "other/model", ConvolutionalSize(layers=1, d_model=8, dropout=0.1))
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"convolutions": null', '"convolutions": [[8, 3, 1000000000]]'))
    assert "1000000000 layers" in refusal(directory)


def test_weights_that_are_not_finite_are_bad_data(directory: Path) -> None:
    file, name = directory / "model.safetensors", "encoder.0.feed_forward.inner.weight"
    weights = load_file(file)
    config = read_json(directory / "config.json")
    del config["weights_sha256"]  # As for weights that somebody has changed, and as configs were before they had a sum.
    write_json(directory / "config.json", config)
    for value in (float("nan"), float("inf")):
        weights[name][3, 2] = value
        save_file(weights, file)
        assert f"{name} holds values that are not finite" in refusal(directory)


def test_weights_of_fp16_are_finite_though_their_sum_overflows() -> None:
    check_finite({"embedding": torch.full((300, 300), 1.0, dtype=torch.float16)}, Path("model.safetensors"))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"d_ff": 16', f'"d_ff": {10**30}', "model.transformer.d_ff"),
        ('"dropout": 0.1', '"dropout": 2', "model.transformer.dropout"),
        ('"d_ff": 16', '"d_ff": 16, "d_fff": 1', "model.transformer.d_fff"),
        ('"d_ff": 16,', "", "model.transformer.d_ff"),
        ('"architecture": "transformer"', '"architecture": "x"', "model"),
        ('"source": "en"', '"source": 3', "source"),
    ],
)
def test_a_wrong_config_is_one_line_that_names_file_and_key(old: str, new: str, key: str, directory: Path) -> None:
    config = directory / "config.json"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    assert refusal(directory).startswith(f"{config}: {key}: ")
