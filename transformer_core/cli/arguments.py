"""What the commands' modules share: types of arguments, and the options that name a model."""

import argparse
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

    from transformer_core.config import Model
    from transformer_core.presets import ModelSize

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def positive_int(text: str) -> int:
    """An argument that is a whole number above 0."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def non_negative_int(text: str) -> int:
    """An argument that is a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def non_negative_float(text: str) -> float:
    """An argument that is a number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, got {text!r}")
    return value


def positive_float(text: str) -> float:
    """An argument that is a number above 0."""
    value = non_negative_float(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def fraction(text: str) -> float:
    """An argument that is a number above 0, at most 1."""
    value = non_negative_float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0, at most 1, got {text!r}")
    return value


def _vocab_size(text: str) -> int:
    """As bpe.vocab_size."""
    if not (text.isdecimal() and int(text) > 16):
        raise argparse.ArgumentTypeError(f"must be a whole number above 16, got {text!r}")
    return int(text)


def _device(text: str) -> str:
    """A device by torch's name for it."""
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]?))?", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:N, got {text!r}")
    return text


def add_device_argument(parser: argparse._ActionsContainer) -> None:
    """The option that says where a model computes."""
    parser.add_argument("--device", metavar="D", type=_device, help="cpu, cuda or cuda:N; GPUs if there are any where none is named")


def chosen_device(name: str | None) -> "torch.device | None":
    """What `--device` means on this machine; None where it was not given.

    Raises:
        UserError: exit code 78; a GPU that the machine has not got.
    """
    import torch

    from transformer_core.errors import configuration_error

    if name is None:
        return None
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise configuration_error(f"--device: {name} asked for, {torch.cuda.device_count()} GPUs here")
    return device


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a model's sizes."""
    parser.add_argument("--preset", metavar="P", help="base, big, table3/C-N2, ...; the model of params.yaml where none is named")
    parser.add_argument(
        "--architecture",
        metavar="A",
        choices=("transformer", "recurrent", "convolutional"),
        help="of the preset: %(choices)s (transformer)",
    )
    parser.add_argument("--vocab-size", metavar="V", type=_vocab_size, help="subwords; bpe.vocab_size of params.yaml where none is given")
    parser.add_argument("--length", metavar="N", type=positive_int, default=25, help="tokens of a sentence (25)")


def chosen_model(arguments: argparse.Namespace) -> "tuple[Model, ModelSize, int]":
    """The `model` section, its sizes and the vocabulary's size that the options mean.

    Raises:
        UserError: exit code 78; no such model, or a --length that it cannot read.
    """
    from transformer_core.config import Model, load_params
    from transformer_core.errors import configuration_error
    from transformer_core.presets import TransformerSize, resolve

    if arguments.preset:
        model = Model(preset=arguments.preset, architecture=arguments.architecture or "transformer")
    elif arguments.architecture:
        raise configuration_error("--architecture: says what a --preset belongs to, and none is named")
    else:
        model = load_params().model
    size = resolve(model)
    if isinstance(size, TransformerSize) and size.positions == "learned" and arguments.length > size.most_positions:
        raise configuration_error(f"--length: the model has {size.most_positions} positions, and a sentence {arguments.length} tokens")
    return model, size, arguments.vocab_size or load_params().bpe.vocab_size


def in_bytes(size: float) -> str:
    """A size as one reads it: 950 kB, 12 MB, 1.4 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}" if size < 10 * scale else f"{size / scale:,.0f} {unit}"
    return f"{size / 1e3:,.0f} kB"
