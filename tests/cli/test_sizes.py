"""transformer-core info and estimate."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from transformer_core import recipes


@pytest.fixture
def document(call: Call) -> Callable[..., Any]:
    """The JSON that a command prints."""
    return lambda *arguments: json.loads(call(*arguments, "--json").out)


def write_params(folder: Path, recipe: str, *changes: tuple[str, str]) -> None:
    text = recipes.read(recipe)
    for old, new in changes:
        text, count = re.subn(old, new, text)
        assert count
    (folder / "params.yaml").write_text(text, encoding="utf-8")


def test_sizes_are_those_of_params_yaml_or_a_preset(call: Call, document: Callable[..., Any], tmp_path: Path) -> None:
    shown = call("info", "--preset", "base", "--vocab-size", "37000").out
    assert ["total", "63,045,632", "parameters"] in [line.split() for line in shown.split("\n")]
    write_params(tmp_path, "tatoeba", ("preset: tiny", "preset: tiny\n  layers: 1"))
    found = document("info")
    assert (found["preset"], found["model"]["layers"], found["vocab_size"]) == ("tiny", 1, recipes.load("tatoeba").bpe.vocab_size)


def test_the_flops_of_a_token_are_six_for_each_weight_it_passes_and_those_of_attention(document: Callable[..., Any]) -> None:
    found = document("info", "--preset", "table3/C-N2", "--vocab-size", "2000", "--length", "25")
    parameters, size = found["parameters"], found["model"]
    total = parameters.pop("total")
    assert total == sum(parameters.values())
    # Vectors (norms, biases) are no matrix products. The shared matrix is multiplied once, as the projection.
    vectors = size["layers"] * (2 * (2048 + 512) + 5 * 2 * 512)
    # Three attentions a layer, each with 25 scores and 25 weighted sums a head and a token.
    attention = 6 * 3 * size["layers"] * 25 * size["heads"] * (size["d_k"] + size["d_v"])
    assert found["training"]["flops_a_token"] == pytest.approx(6 * (total - vectors) + attention, rel=1e-6)
    assert found["training"]["state_bytes"] == 16 * total


@pytest.mark.parametrize("architecture", ["recurrent", "convolutional"])
def test_the_baselines_have_sizes_too(architecture: str, document: Callable[..., Any]) -> None:
    found = document("info", "--architecture", architecture, "--preset", "tiny", "--vocab-size", "2000", "--length", "25")
    assert found["model"]["architecture"] == architecture
    total = found["parameters"].pop("total")
    assert total == sum(found["parameters"].values())
    # Each weight is multiplied once a token, forward and twice backward, but for vectors; a decoder layer attends to 25 positions.
    products, attention = 6 * total, 6 * 2 * 25 * found["model"]["layers"] * found["model"]["d_model"]
    assert 0.9 * products < found["training"]["flops_a_token"] <= products + attention


def test_a_parser_costs_more_than_a_plain_transformer(document: Callable[..., Any]) -> None:
    sizes = ("--preset", "tiny", "--vocab-size", "2000", "--length", "25")
    plain, parser = (document("info", "--architecture", name, *sizes)["training"] for name in ("transformer", "parser"))
    assert all(parser[key] > plain[key] for key in ("flops_a_token", "activation_bytes_a_token"))


def test_an_estimate_at_a_given_rate_is_tokens_over_rate(call: Call, document: Callable[..., Any], tmp_path: Path) -> None:
    write_params(tmp_path, "wmt14-en-de-base")
    arguments = ("estimate", "--rate", "10000", "--price", "2", "--preset")
    # An update has eight micro-batches. Devices without one make nothing faster.
    for devices, busy in ((3, 8 / 3), (16, 8)):
        found = document(*arguments, "tiny", "--devices", str(devices))
        assert (found["target_tokens"], found["busy_devices"]) == (2_500_000_000, pytest.approx(busy))
        assert found["hours"] == pytest.approx(2.5e9 / (10_000 * busy) / 3600)
        assert found["cost"] == pytest.approx(2 * found["hours"])
    shown = call(*arguments, "base", "--devices", "8").out
    assert "100,000 updates of 25,000 tokens: at most 2.5e+09 target tokens" in shown


def test_an_estimate_without_a_rate_measures_this_machines(document: Callable[..., Any], tmp_path: Path) -> None:
    small = "tokens_per_(update|microbatch): .*", r"tokens_per_\1: 256"
    write_params(tmp_path, "tatoeba", small, ("bpe_dropout: 0", "bpe_dropout: 0.1"), ("  mix:", "  mix: [{weights: {old: 1}}]"))
    others = [tmp_path / name for name in ("state-00000001.pt", "state-best.pt", "checkpoints/update-00000001.safetensors")]
    (tmp_path / "checkpoints").mkdir()
    for file in others:
        file.touch()
    found = document("estimate")
    assert all(file.exists() for file in others)  # The updates are those of a training, which removes later states in its own folder.
    assert found["tokens_per_second"] > 0
    assert (found["devices"], found["busy_devices"]) == (1, 1)
    assert found["hours"] == pytest.approx(found["target_tokens"] / found["tokens_per_second"] / 3600)


def test_an_estimate_has_the_devices_and_price_of_all_machines_and_both_passes(document: Callable[..., Any], tmp_path: Path) -> None:
    of_one = ("  price_per_hour:", "  price_per_hour: 3"), ("  devices:", "  devices: 2")
    write_params(tmp_path, "tatoeba", *of_one)
    here = document("estimate", "--rate", "1")
    two = ("places: {}", "places: {train: {on: slurm, time: '24:00:00', nodes: 2}}")
    write_params(tmp_path, "tatoeba", *of_one, two, ("_drop: 0", "_drop: 5"), ("  dropout: 0", "  dropout: 0.1"))
    there, asked = document("estimate", "--rate", "1"), document("estimate", "--rate", "1", "--devices", "3", "--price", "1")
    for found, devices, price in ((here, 2, 3), (there, 4, 6), (asked, 3, 1)):
        assert (found["devices"], found["cost"]) == (devices, pytest.approx(price * found["hours"]))
    assert (there["flops"], there["target_tokens"]) == (2 * here["flops"], here["target_tokens"])
