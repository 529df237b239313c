"""`transformer-core attention`: what a model attends to while it translates one sentence, as pictures and as numbers."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_core.cli.arguments import Commands, add_device_argument, chosen_device, positive_int
from transformer_core.errors import configuration_error

if TYPE_CHECKING:
    from transformer_core.corpus.subword import Subword
    from transformer_core.evaluation.attention import AttentionMaps, Kind
    from transformer_core.models.translation import TranslationModel

_KINDS = ("encoder", "decoder", "cross")  # As in evaluation.attention, which imports torch.
_NUMBERS = "attention.json"


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("attention", help="pictures of what a model attends to in one sentence")
    parser.add_argument("source", metavar="SOURCE_SENTENCE", type=_sentence)
    parser.add_argument("target", metavar="TARGET_SENTENCE", nargs="?", type=_sentence, help="the model's own translation if left out")
    parser.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help=f"for encoder.png, decoder.png, cross.png, {_NUMBERS}")
    parser.add_argument("--kind", choices=_KINDS, help="self-attention of encoder or decoder, or attention to the source (all three)")
    parser.add_argument("--layers", metavar="N,...", type=_numbers, help="from 1 on, as in the paper (all)")
    parser.add_argument("--heads", metavar="N,...", type=_numbers, help="from 1 on (all)")
    add_device_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write a picture for each kind of attention, and the numbers; print the translation where none was given, and what was written."""
    from transformer_core.decoding.translator import load_for_decoding
    from transformer_core.evaluation.attention import attention_maps

    model, subword = load_for_decoding(arguments.model, device=chosen_device(arguments.device))
    source = _tokens(model, subword, arguments.source, "SOURCE_SENTENCE")
    if len(source) == 1:
        raise configuration_error("SOURCE_SENTENCE: no text")
    target = _translated(model, source) if arguments.target is None else _tokens(model, subword, arguments.target, "TARGET_SENTENCE")
    maps = attention_maps(model, subword, source, target)
    kinds = _chosen_kinds(arguments.kind, maps)
    counts = maps.weights[kinds[0]].shape
    layers, heads = (
        _chosen(option, numbers, count)
        for option, numbers, count in (("layers", arguments.layers, counts[0]), ("heads", arguments.heads, counts[1]))
    )
    written = _write(maps, kinds, layers, heads, arguments.out)
    if arguments.target is None:
        print(subword.decode(target))
    print(f"{arguments.out}: {', '.join(written)} (layers {_listed(layers)}; heads {_listed(heads)})")
    return 0


def _write(maps: "AttentionMaps", kinds: "Sequence[Kind]", layers: Sequence[int], heads: Sequence[int], folder: Path) -> list[str]:
    """Names of the files written. Everything is drawn before anything is written."""
    from transformer_core.evaluation.heat_maps import find_fonts, heat_maps, save_png
    from transformer_core.files import new_file

    fonts = find_fonts([*maps.source, *maps.read, *maps.predicted])
    figures = {f"{kind}.png": heat_maps(maps, kind, layers, heads, fonts) for kind in kinds}
    try:
        for name, figure in figures.items():
            save_png(figure, folder / name)
        with new_file(folder / _NUMBERS) as temporary:
            temporary.write_text(json.dumps(maps.document(kinds, layers, heads), ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise configuration_error(f"--out: {folder} cannot be written to ({error.strerror})") from None
    if fonts.missing:
        remedy = f"{_NUMBERS} has them as they are; a font such as Noto Sans CJK draws them."
        print(f"no installed font draws {' '.join(fonts.missing)}: boxes in the pictures. {remedy}", file=sys.stderr)
    return [*figures, _NUMBERS]


def _tokens(model: "TranslationModel", subword: "Subword", sentence: str, name: str) -> list[int]:
    from transformer_core.decoding.scoring import check_length

    tokens = subword.encode(sentence)
    check_length(model, tokens, name)
    return tokens


def _translated(model: "TranslationModel", source: list[int]) -> list[int]:
    """The best output as the search found it: its text encoded again may be other tokens."""
    import torch

    from transformer_core.decoding.beam import Search, beam_search

    tokens = torch.tensor([source], device=model.device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    outputs = beam_search(model, tokens, mask, Search(), most_positions=model.most_positions)
    return outputs[0][0].tokens


def _chosen_kinds(kind: "Kind | None", maps: "AttentionMaps") -> "list[Kind]":
    if kind is not None and kind not in maps.weights:
        raise configuration_error(f"--kind: this model has no {kind} attention", f"It has: {', '.join(maps.weights)}.")
    return list(maps.weights) if kind is None else [kind]


def _chosen(option: str, numbers: list[int] | None, count: int) -> list[int]:
    beyond = [number for number in numbers or [] if number > count]
    if beyond:
        raise configuration_error(f"--{option}: {beyond[0]} asked for, and the model has {count}")
    return numbers or list(range(1, count + 1))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _numbers(text: str) -> list[int]:
    """An argument that is whole numbers above 0, parted by commas."""
    return sorted({positive_int(number) for number in text.split(",")})


def _sentence(text: str) -> str:
    """An argument that is text: Python lets bytes that are none through."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("not valid UTF-8") from None
    return text
