import re
from dataclasses import replace

import pytest

from tests.refusals import refused
from transformer_core.config import WITHOUT_DROPOUT, Model
from transformer_core.presets import BASE, PRESETS, ConvolutionalSize, RecurrentSize, resolve


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "bas"}, "model.preset: no preset of the architecture transformer is called 'bas'. Nearest: base, student-base."),
        ({"preset": "table3/A-h2"}, "Nearest: table3/A-h"),
        ({"preset": "big", "architecture": "recurrent"}, "model.preset: no preset of the architecture recurrent is called 'big'"),
        ({"preset": "base", "d_model": 511}, "model.d_model: must be even, got 511"),
        ({"preset": "base", "heads": 3}, "model.heads: 3 heads do not divide d_model 512. Set model.d_k or choose a divisor."),
        (
            {"preset": "base", "most_positions": 9},
            "model.most_positions: needs model.positions learned, got sinusoidal. Leave the key out.",
        ),
        ({"preset": "base", "kernel": 3}, "model.kernel: the architecture transformer has no such setting"),
        ({"preset": "tiny", "architecture": "recurrent", "heads": 4}, "model.heads: the architecture recurrent has no such setting"),
        ({"preset": "tiny", "architecture": "convolutional", "kernel": 4}, "model.kernel: must be odd"),
        ({"preset": "base", "reverse_source": True}, "model.reverse_source: the architecture transformer has no such setting"),
        (
            {"preset": "tiny", "architecture": "recurrent", "decoder": "luong", "attention": "additive"},
            "model.attention: must be dot with model.decoder luong, got additive. Leave the key out.",
        ),
        (
            {"preset": "tiny", "architecture": "recurrent", "decoder": "bahdanau", "bidirectional": False},
            "model.bidirectional: must be true with model.decoder bahdanau, got false.",
        ),
        (
            {"preset": "tiny", "architecture": "convolutional", "convolutions": [[8, 3, 2], [8, 2, 1]]},
            "model.convolutions: kernels must be odd, so that a convolution has a middle, got 2",
        ),
        (
            {"preset": "wmt14-en-de", "architecture": "convolutional", "layers": 3},
            "model.layers: is set by model.convolutions. Leave the key out, or change model.convolutions.",
        ),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(settings: dict[str, object], message: str) -> None:
    with refused(78, re.escape(message)):
        resolve(Model.model_validate(settings))


def test_one_preset_has_no_dropout_which_params_know_by_its_name() -> None:
    without = [name for sizes in PRESETS.values() for name, size in sizes.items() if not size.dropout]
    assert without == [WITHOUT_DROPOUT]


def test_keys_override_the_preset_one_by_one() -> None:
    size = resolve(Model(preset="base", norm="pre", neighbourhood=5, layers=2))
    assert (size.norm, size.neighbourhood, size.layers, size.d_model) == ("pre", 5, 2, 512)
    for learned in (Model(preset="base", positions="learned", most_positions=9), Model(preset="table3/E-learned", most_positions=9)):
        assert resolve(learned) == replace(BASE, positions="learned", most_positions=9)
    recurrent = resolve(Model(architecture="recurrent", preset="tiny", cell="gru", attention="none"))
    assert (recurrent.cell, recurrent.attention) == ("gru", "none")


def test_layers_set_both_depths_unless_each_is_given() -> None:
    depths = [
        resolve(Model(preset="student-tiny", **more)).depths  # type: ignore[arg-type,union-attr]
        for more in ({}, {"layers": 3}, {"decoder_layers": 1}, {"layers": 4, "encoder_layers": 5})
    ]
    assert depths == [(6, 2), (3, 3), (6, 1), (5, 4)]


def test_a_papers_decoder_brings_its_other_settings() -> None:
    size = resolve(Model(architecture="recurrent", preset="tiny", decoder="luong", reverse_source=True))
    assert size == RecurrentSize(
        layers=1, d_model=256, dropout=0.1, attention="dot", decoder="luong", bidirectional=False, reverse_source=True
    )


def test_groups_of_convolutions_say_how_many_layers_there_are() -> None:
    size = resolve(Model(architecture="convolutional", preset="tiny", convolutions=[[32, 3, 2], [64, 1, 1]]))
    assert size == ConvolutionalSize(layers=3, d_model=192, dropout=0.1, convolutions=((32, 3, 2), (64, 1, 1)))


def test_head_sizes_follow_the_width_unless_they_are_given() -> None:
    size = resolve(Model(preset="base", heads=16))
    assert (size.d_k, size.d_v) == (32, 32)
    size = resolve(Model(preset="base", heads=16, d_k=7))
    assert (size.d_k, size.d_v) == (7, 32)


@pytest.mark.parametrize("architecture", PRESETS)
def test_every_preset_resolves_to_itself(architecture: str) -> None:
    for name, size in PRESETS[architecture].items():
        assert resolve(Model.model_validate({"architecture": architecture, "preset": name})) == size
