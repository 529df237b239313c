"""`transformer-core info`: how large a model is, and where its parameters are."""

import argparse
import json
from dataclasses import asdict

from transformer_core.cli.arguments import Commands, positive_int


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("info", help="how large a model is")
    parser.add_argument("--preset", metavar="P", help="base, big, ...; the model of params.yaml where none is named")
    parser.add_argument("--vocab-size", metavar="V", type=positive_int, help="subwords; bpe.vocab_size of params.yaml where none is given")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print sizes and parameters by part."""
    from transformer_core.config import Model, load_params
    from transformer_core.models.size import parameters_by_part
    from transformer_core.presets import resolve

    model = Model(preset=arguments.preset) if arguments.preset else load_params().model
    vocab_size = arguments.vocab_size or load_params().bpe.vocab_size
    size = resolve(model)
    parts = parameters_by_part(size, vocab_size)
    total = sum(parts.values())
    if arguments.json:
        document = {"preset": model.preset, "vocab_size": vocab_size, "model": asdict(size), "parameters": {"total": total, **parts}}
        print(json.dumps(document, indent=2))
        return 0
    print(f"preset {model.preset}, {vocab_size:,} subwords: " + ", ".join(f"{name} {value}" for name, value in asdict(size).items()))
    for part, parameters in {**parts, "total": total}.items():
        print(f"{part.replace('_', ' '):<22} {parameters:>14,} parameters")
    return 0
