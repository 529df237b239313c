import re
from dataclasses import replace

import pytest

from tests.refusals import refused
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.config import Model, resolve
from transformer_core.presets import BASE

RECURRENT, CONVOLUTIONAL = ({"preset": "tiny", "architecture": name} for name in ("recurrent", "convolutional"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "bas"}, "preset: no preset of the architecture transformer is called 'bas'. Did you mean base?"),
        ({"preset": "base", "d_model": 511}, "d_model: must be even, got 511"),
        ({"preset": "base", "heads": 3}, "heads: 3 heads do not divide d_model 512. Set model.d_k or choose a divisor."),
        ({"preset": "base", "most_positions": 9}, "most_positions: needs model.positions learned, got sinusoidal. Leave the key out."),
        ({"preset": "base", "kernel": 3}, "kernel: the architecture transformer has no such setting"),
        (RECURRENT | {"decoder": "luong", "attention": "additive"}, "attention: must be dot with model.decoder luong, got additive."),
        (CONVOLUTIONAL | {"convolutions": [[8, 3, 2], [8, 2, 1]]}, "convolutions: kernels must be odd, so that "),
        (CONVOLUTIONAL | {"preset": "wmt14-en-de", "layers": 3}, "layers: is set by model.convolutions. Leave the key out, or "),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(settings: dict[str, object], message: str) -> None:
    with refused(78, re.escape(f"model.{message}")):
        resolve(Model.model_validate(settings))


def test_keys_override_the_preset_one_by_one() -> None:
    size = resolve(Model(preset="base", norm="pre", layers=2))
    assert (size.norm, size.layers, size.d_model) == ("pre", 2, 512)
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
