"""`transformer-core export`, `import`, `info` and `estimate`: a model for another engine, its size, and the cost of its training."""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_core.cli.arguments import Commands, above_16, add_command, in_bytes, non_negative_float, positive_float, positive_int
from transformer_core.errors import configuration_error

if TYPE_CHECKING:
    from transformer_core.config import Model
    from transformer_core.sizes import ModelSize


def add_to(commands: Commands) -> None:
    example = "--format ctranslate2 --model models/averaged --out exported"
    add = add_command(commands, "export", run_export, "convert a model for another engine", example).add_argument
    add("--format", choices=("ctranslate2", "huggingface"), required=True, help="of the other engine")
    add("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    add("--out", metavar="DIR", type=Path, required=True, help="directory to write; replaces an earlier export")
    summary = "convert a Marian model of Hugging Face, such as OPUS-MT's, to a model directory"
    add = add_command(commands, "import", run_import, summary, "opus-mt-en-de pretrained/opus-mt-en-de").add_argument
    add("folder", metavar="DIR", type=Path, help="with config.json, weights, source.spm, target.spm and vocab.json")
    add("out", metavar="OUT", type=Path, help="model directory to write")
    add("--source", metavar="L", help="source language, if tokenizer_config.json names none")
    add("--target", metavar="L", help="target language, likewise")
    info = add_command(commands, "info", run_info, "print the size of a model", "--preset big")
    summary = "estimate tokens, FLOPs, hours and cost of a training"
    estimate = add_command(commands, "estimate", run_estimate, summary, "--preset base --devices 8 --price 20")
    for add in (info.add_argument, estimate.add_argument):
        add("--preset", metavar="P", help="base, big, table3/C-N2, ... (default: the model of params.yaml)")
        add("--architecture", metavar="A", help="architecture of the preset (default: transformer)")
        add("--vocab-size", metavar="V", type=above_16, help="number of subwords (default: bpe.vocab_size)")
        add("--length", metavar="N", type=positive_int, default=25, help="tokens of a sentence (default: 25)")
        add("--json", action="store_true", help="print JSON")
    add = estimate.add_argument
    add("--updates", metavar="U", type=positive_int, help="updates (default: train.updates)")
    add("--tokens-per-update", metavar="T", type=positive_int, help="tokens of an update (default: train.tokens_per_update)")
    add("--rate", metavar="R", type=positive_float, help="target tokens a second on one device (default: measured here)")
    add("--devices", metavar="N", type=positive_int, help="devices of all machines together (default: from section machine)")
    add("--price", metavar="P", type=non_negative_float, help="price of an hour of all machines (default: from machine.price_per_hour)")


def run_export(arguments: argparse.Namespace) -> int:
    """Write the directory and print its size."""
    if arguments.format == "huggingface":
        from transformer_core.decoding.hugging_face import export_model
    else:
        from transformer_core.decoding.ctranslate2_export import export_model

    if arguments.out.resolve() == Path.cwd():
        raise configuration_error("--out: is the working directory, which would be replaced", "Name a new folder.")
    export_model(arguments.model, arguments.out)
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: a model for {'CTranslate2' if arguments.format == 'ctranslate2' else 'transformers'}, {in_bytes(size)}")
    return 0


def run_import(arguments: argparse.Namespace) -> int:
    """Write the model directory and print how to train it further."""
    from transformer_core.decoding.hugging_face import import_model

    if arguments.out.exists():
        raise configuration_error(f"{arguments.out}: exists", "Name another directory or remove it.")
    config = import_model(arguments.folder, arguments.out, arguments.source, arguments.target)
    print(f"{arguments.out}: {config.source} to {config.target}, {config.vocabulary.size:,} subwords")
    print(f"to fine-tune it: transformer-core data tune CORPUS --from {arguments.out}")
    return 0


def _chosen_model(arguments: argparse.Namespace) -> "tuple[Model, ModelSize, int]":
    """Return the chosen `model` section, its sizes, and V. Raises `UserError` (78): no such model, or --length beyond learned positions."""
    from transformer_core.config import Model, load_params, resolve
    from transformer_core.presets import TransformerSize
    from transformer_core.schema import validate_document

    if arguments.preset:
        options = {"preset": arguments.preset, "architecture": arguments.architecture or "transformer"}
        model = validate_document(Model, options, Path("options"))
    elif arguments.architecture:
        raise configuration_error("--architecture: needs a --preset")
    else:
        model = load_params().model
    size = resolve(model)
    if isinstance(size, TransformerSize) and size.positions == "learned" and arguments.length > size.most_positions:
        fault = f"the model has {size.most_positions} positions, but a sentence would have {arguments.length} tokens"
        raise configuration_error(f"--length: {fault}")
    return model, size, arguments.vocab_size or load_params().bpe.vocab_size


def run_info(arguments: argparse.Namespace) -> int:
    from transformer_core.models.architectures import cost_of_training, parameters_by_part

    model, size, vocab_size = _chosen_model(arguments)
    parts = parameters_by_part(size, vocab_size)
    total = sum(parts.values())
    cost = cost_of_training(size, vocab_size, arguments.length)
    if arguments.json:
        document = {"preset": model.preset, "vocab_size": vocab_size, "model": asdict(size), "parameters": {"total": total, **parts}}
        print(json.dumps({**document, "training": {"sentence_tokens": arguments.length, **cost._asdict()}}, indent=2))
        return 0
    settings = {name: value for name, value in asdict(size).items() if value is not None}
    if {"encoder_layers", "decoder_layers"} <= settings.keys():
        del settings["layers"]  # It has no effect beside these.
    print(f"preset {model.preset}, {vocab_size:,} subwords: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    for part, parameters in {**parts, "total": total}.items():
        print(f"{part.replace('_', ' '):<24} {parameters:>14,} parameters")
    print(f"training, sentences of {arguments.length} tokens: {cost.flops_a_token / 1e9:.3f} GFLOP a target token, forward and backward;")
    state, activations = f"{cost.state_bytes / 1e9:.2f} GB", f"{cost.activation_bytes_a_token / 1e6:.2f} MB a position of a micro-batch"
    print(f"{state} for weights, gradients and Adam, and about {activations} (train.tokens_per_microbatch) in bf16, on a CPU")
    return 0


def run_estimate(arguments: argparse.Namespace) -> int:
    from transformer_core.config import load_params
    from transformer_core.evaluation.pages import duration
    from transformer_core.models.architectures import cost_of_training
    from transformer_core.training.devices import default_devices, default_threads

    params = load_params()
    _, size, vocab_size = _chosen_model(arguments)
    options = {"updates": arguments.updates, "tokens_per_update": arguments.tokens_per_update}
    train = params.train.model_copy(update={key: value for key, value in options.items() if value})
    if train.warning:
        print(train.warning, file=sys.stderr)
    most = min(train.tokens_per_update, train.tokens_per_microbatch)
    if arguments.length > most:
        raise configuration_error(f"--length: a micro-batch holds {most} tokens, but a sentence would have {arguments.length}")
    nodes = params.machine.nodes("train")
    devices = arguments.devices or nodes * (params.machine.devices or default_devices(math.ceil(train.microbatches / nodes)))
    rate = arguments.rate
    if rate is None:
        from transformer_core.training.throughput import measured_rate

        threads = params.machine.threads or default_threads(math.ceil(devices / nodes))
        rate = measured_rate(size, vocab_size, train, arguments.length, threads)
    tokens = train.updates * train.tokens_per_update
    flops = train.passes * tokens * cost_of_training(size, vocab_size, arguments.length).flops_a_token
    busy = train.busy(devices)
    hours = tokens / (rate * busy) / 3600
    price = arguments.price
    if price is None and params.machine.price_per_hour is not None:
        price = nodes * params.machine.price_per_hour
    cost = None if price is None else price * hours
    if arguments.json:
        figures = {"updates": train.updates, "target_tokens": tokens, "flops": flops, "tokens_per_second": rate, "devices": devices}
        print(json.dumps({**figures, "busy_devices": busy, "hours": hours, "cost": cost}, indent=2))
        return 0
    print(f"{train.updates:,} updates of {train.tokens_per_update:,} tokens: at most {tokens:.3g} target tokens, {flops:.2e} FLOPs")
    where = "given" if arguments.rate else "measured here"
    idle = "" if busy == devices else f", of which {busy:.3g} have work ({train.microbatches} micro-batches an update)"
    paid = "" if cost is None else f", {cost:,.2f} at {price:g} an hour"
    print(f"at {rate:,.0f} target tok/s a device ({where}) on {devices}{idle}: {duration(3600 * hours)}{paid}")
    return 0
