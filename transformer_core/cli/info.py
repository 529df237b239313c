"""`transformer-core info`: size, parameters by part, and training cost of a model."""

import argparse
import json
from dataclasses import asdict

from transformer_core.cli.arguments import Commands, add_command, add_model_arguments, chosen_model


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "info", "print the size of a model", "transformer-core info --preset big")
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print sizes, parameters by part and costs."""
    from transformer_core.models.architectures import cost_of_training, parameters_by_part
    from transformer_core.presets import table_3_row

    model, size, vocab_size = chosen_model(arguments)
    parts = parameters_by_part(size, vocab_size)
    total = sum(parts.values())
    cost = cost_of_training(size, vocab_size, arguments.length)
    if arguments.json:
        document = {
            "preset": model.preset,
            "vocab_size": vocab_size,
            "model": asdict(size),
            "parameters": {"total": total, **parts},
            "training": {"sentence_tokens": arguments.length, **asdict(cost)},
        }
        print(json.dumps(document, indent=2))
        return 0
    settings = ", ".join(f"{name} {value}" for name, value in asdict(size).items() if value is not None)
    print(f"preset {model.preset}, {vocab_size:,} subwords: {settings}")
    for part, parameters in {**parts, "total": total}.items():
        print(f"{part.replace('_', ' '):<24} {parameters:>14,} parameters")
    row = table_3_row(model.preset)
    if row is not None and row.size == size and row.millions is not None:
        ours = sum(parameters_by_part(size, row.vocab_size).values()) / 1e6
        print(f"{'the paper, Table 3':<24} {row.millions:>14} x 10^6 parameters; ours with {row.vocab_size:,} subwords: {ours:.1f}")
    print(f"training, sentences of {arguments.length} tokens: {cost.flops_a_token / 1e9:.3f} GFLOP a target token, forward and backward;")
    print(
        f"{cost.state_bytes / 1e9:.2f} GB for weights, gradients and Adam, and about {cost.activation_bytes_a_token / 1e6:.2f} MB "
        "a position of a micro-batch (train.tokens_per_microbatch) in bf16, on a CPU"
    )
    return 0
