"""`transformer-core positions`: the positional encodings as a picture (paper 3.5)."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_core.cli.arguments import Commands, add_command, positive_int, svg_file, two_or_more
from transformer_core.errors import configuration_error

if TYPE_CHECKING:
    from transformer_core.pictures.positions import Encodings

_D_MODEL, _POSITIONS = 512, 100


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "positions",
        "draw positional encodings: their values and their dot products",
        "transformer-core positions --out positions.svg",
    )
    parser.add_argument(
        "--model", metavar="DIR", type=Path, help="draw the encodings of this model, also learned ones (default: the paper's sinusoids)"
    )
    parser.add_argument("--d-model", metavar="D", type=positive_int, help=f"dimensions of the paper's sinusoids (default: {_D_MODEL})")
    parser.add_argument(
        "--positions",
        metavar="N",
        type=two_or_more,
        help=f"number of positions, from 0 on (default: {_POSITIONS}, or as many as a model has learned)",
    )
    parser.add_argument("--out", metavar="FILE", type=svg_file, required=True, help="the picture, a self-contained SVG file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw the picture; print its path and content."""
    from transformer_core.pictures.drawing import save
    from transformer_core.pictures.positions import position_figure

    sides = _encodings(arguments)
    figure = position_figure(sides)
    try:
        save(figure, arguments.out)
    except OSError as error:
        raise configuration_error(f"--out: {arguments.out} cannot be written ({error.strerror})") from None
    positions, d_model = sides[0].values.shape
    print(f"{arguments.out}: {positions:,} {'learned' if sides[0].learned else 'sinusoidal'} positions of {d_model:,} dimensions")
    return 0


def _encodings(arguments: argparse.Namespace) -> "list[Encodings]":
    from transformer_core.models.directory import load_model
    from transformer_core.pictures.positions import encodings_of, sinusoids

    if arguments.model is None:
        return [sinusoids(arguments.positions or _POSITIONS, arguments.d_model or _D_MODEL)]
    if arguments.d_model is not None:
        raise configuration_error("--d-model: cannot be combined with --model, which has its own")
    model, _ = load_model(arguments.model)
    positions = arguments.positions or min(_POSITIONS, model.most_positions or _POSITIONS)
    return encodings_of(model, positions)
