"""`transformer-core estimate`: tokens, FLOPs, hours and cost of a training."""

import argparse
import json
import math
import sys

from transformer_core.cli.arguments import (
    Commands,
    add_command,
    add_model_arguments,
    chosen_model,
    non_negative_float,
    positive_float,
    positive_int,
)
from transformer_core.errors import configuration_error

# From the paper's Table 2 and section 5.2: eight P100s, whose FLOPs the paper computes with 9.5 sustained TFLOPS each.
_PAPER = {"base": "3.3e18 FLOPs, 12 hours", "big": "2.3e19 FLOPs, 3.5 days"}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "estimate",
        "estimate tokens, FLOPs, hours and cost of a training",
        "transformer-core estimate --preset base --devices 8 --price 20",
    )
    add_model_arguments(parser)
    parser.add_argument("--updates", metavar="U", type=positive_int, help="(train.updates of params.yaml)")
    parser.add_argument("--tokens-per-update", metavar="T", type=positive_int, help="(train.tokens_per_update)")
    parser.add_argument("--rate", metavar="R", type=positive_float, help="target tokens a second of a device (measured here)")
    parser.add_argument("--devices", metavar="N", type=positive_int, help="of all machines (by machine.devices and nodes)")
    parser.add_argument("--price", metavar="P", type=non_negative_float, help="of an hour of all machines (by price_per_hour and nodes)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _in_words(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.1f} seconds"


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate."""
    from transformer_core.config import load_params
    from transformer_core.models.architectures import cost_of_training
    from transformer_core.presets import TABLE_3
    from transformer_core.training.devices import default_devices, default_threads

    params = load_params()
    model, size, vocab_size = chosen_model(arguments)
    train = params.train.model_copy(
        update={
            "updates": arguments.updates or params.train.updates,
            "tokens_per_update": arguments.tokens_per_update or params.train.tokens_per_update,
        }
    )
    if train.warning:
        print(train.warning, file=sys.stderr)
    most = min(train.tokens_per_update, train.tokens_per_microbatch)
    if arguments.length > most:
        raise configuration_error(f"--length: a micro-batch holds {most} tokens, and a sentence {arguments.length}")
    nodes = params.machine.training_nodes
    devices = arguments.devices or nodes * (params.machine.devices or default_devices(math.ceil(train.microbatches / nodes)))
    rate = arguments.rate
    if rate is None:
        from transformer_core.training.throughput import measured_rate

        threads = params.machine.threads or default_threads(math.ceil(devices / nodes))
        rate = measured_rate(size, vocab_size, train, arguments.length, threads)
    tokens = train.updates * train.tokens_per_update
    flops = train.passes * tokens * cost_of_training(size, vocab_size, arguments.length).flops_a_token
    # Devices take micro-batches in turn; in the last turn of an update some may be idle.
    busy = train.microbatches / math.ceil(train.microbatches / devices)
    hours = tokens / (rate * busy) / 3600
    price = arguments.price
    if price is None and params.machine.price_per_hour is not None:
        price = nodes * params.machine.price_per_hour
    cost = None if price is None else price * hours
    if arguments.json:
        figures = {"updates": train.updates, "target_tokens": tokens, "flops": flops, "tokens_per_second": rate, "devices": devices}
        print(json.dumps({**figures, "busy_devices": busy, "hours": hours, "cost": cost}, indent=2))
        return 0
    plain = " before BPE-dropout, which makes more of them" if train.bpe_dropout else ""
    print(f"{train.updates:,} updates of {train.tokens_per_update:,} tokens{plain}: at most {tokens:.3g} target tokens, {flops:.2e} FLOPs")
    where = "given" if arguments.rate else "measured here"
    idle = "" if busy == devices else f", of which {busy:.3g} have work ({train.microbatches} micro-batches an update)"
    print(
        f"at {rate:,.0f} target tok/s a device ({where}) on {devices}{idle}: {_in_words(hours)}"
        + ("" if cost is None else f", {cost:,.2f} at {price:g} an hour")
    )
    if model.preset in _PAPER and TABLE_3[model.preset].size == size:
        updates = TABLE_3[model.preset].updates
        print(f"the paper's {model.preset}: {updates:,} updates of 25,000 tokens, {_PAPER[model.preset]} on 8 P100")
        print("(the paper's FLOPs are hours x GPUs x 9.5 sustained TFLOPS, the machines' capacity; ours count the model's matrix products)")
    return 0
