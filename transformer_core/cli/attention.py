"""`transformer-core attention` and `heads`: a model's attention in one sentence, as pictures and numbers, and counts over sentences."""

import argparse
import json
from itertools import product
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command, add_device_argument, chosen_device, positive_int, sentence
from transformer_core.corpus.text import Pair
from transformer_core.errors import configuration_error
from transformer_core.files import write_text

_KINDS = ("encoder", "decoder", "cross")  # As in pictures.attention_maps, which imports numpy.
_NUMBERS = "attention.json"


def add_to(commands: Commands) -> None:
    example = "'The dog sees a cat.' --model models/averaged --out pictures"
    parser = add_command(commands, "attention", run, "draw what a model attends to in one sentence", example)
    add = parser.add_argument
    add("source", metavar="SOURCE_SENTENCE", type=sentence, help="both sentences stand together, before or after the options")
    add("target", metavar="TARGET_SENTENCE", nargs="?", type=sentence, help="its translation (default: the model's own)")
    add("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    add("--out", metavar="DIR", type=Path, required=True, help=f"folder for encoder.svg, decoder.svg, cross.svg, {_NUMBERS}")
    add("--kind", choices=_KINDS, help="self-attention of encoder or decoder, or attention to the source (default: all)")
    add("--layers", metavar="N,...", type=_numbers, help="layers, counted from 1 as in the paper (default: all)")
    add("--heads", metavar="N,...", type=_numbers, help="heads, counted from 1 (default: all)")
    add_device_argument(parser)
    summary = "count what the heads of an encoder look at, and how often a pronoun finds its noun"
    heads = add_command(commands, "heads", run_heads, summary, "docs/pronouns.tsv --model models/averaged")
    heads.add_argument("sentences", metavar="FILE", type=Path, help="lines of a sentence, a pronoun, its noun, another noun; with tabs")
    heads.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    add_device_argument(heads)


def run(arguments: argparse.Namespace) -> int:
    """Write a picture for each kind of attention and the numbers; print the translation if none was given, and the files' names."""
    from transformer_core.corpus.tokens.encoding import encoded, encoded_source
    from transformer_core.decoding.beam import Search
    from transformer_core.decoding.lines import with_strings
    from transformer_core.decoding.translator import Translator, check_length, load_for_decoding
    from transformer_core.evaluation.attention import attention_maps
    from transformer_core.pictures.attention_maps import attention_picture
    from transformer_core.pictures.drawing import save

    model, subword = load_for_decoding(arguments.model, device=chosen_device(arguments.device))
    source, strings = encoded_source(arguments.source, subword)
    check_length(source, model.most_positions, "SOURCE_SENTENCE")
    if len(source) == 1:
        raise configuration_error("SOURCE_SENTENCE: no text")
    if arguments.target is None:
        (ranked,) = Translator(model, subword).translate_tokens([source], Search())
        target = ranked[0].ids  # Encoding the text again could give other tokens.
    else:
        _, target = encoded(Pair(arguments.source, arguments.target), subword)
        check_length(target, model.most_positions, "TARGET_SENTENCE")
    maps = attention_maps(model, subword, source, target)
    if arguments.kind not in (None, *maps.weights):
        raise configuration_error(f"--kind: this model has no {arguments.kind} attention", f"It has: {', '.join(maps.weights)}.")
    kinds = list(maps.weights) if arguments.kind is None else [arguments.kind]
    counts = max(maps.weights[kind].shape for kind in kinds)
    layers, heads = _chosen("layers", arguments.layers, counts[0]), _chosen("heads", arguments.heads, counts[1])
    chosen = {kind: numbers for kind in kinds if (numbers := maps.layers(kind, layers))}
    figures = {f"{kind}.svg": attention_picture(maps, kind, [*product(found, heads)], len(heads)) for kind, found in chosen.items()}
    try:  # Once all are drawn.
        for name, figure in figures.items():
            save(figure, arguments.out / name)
        document = maps.document(kinds, layers, heads)
        write_text(arguments.out / _NUMBERS, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise configuration_error(f"--out: {arguments.out} cannot be written to ({error.strerror})") from None
    if arguments.target is None:
        print(with_strings(ranked, strings)[0].text)
    shown = "; heads ".join(", ".join(map(str, numbers)) for numbers in (layers, heads))
    print(f"{arguments.out}: {', '.join([*figures, _NUMBERS])} (layers {shown})")
    return 0


def run_heads(arguments: argparse.Namespace) -> int:
    """Print a line for each head, and what all of them do."""
    from transformer_core.corpus.tokens.encoding import encoded_source
    from transformer_core.corpus.tokens.subword import EOS
    from transformer_core.decoding.translator import check_length, load_for_decoding
    from transformer_core.evaluation.attention import attention_maps
    from transformer_core.evaluation.heads import count_heads, read_pronouns

    sentences = read_pronouns(arguments.sentences)
    model, subword = load_for_decoding(arguments.model, device=chosen_device(arguments.device))
    encoded = [encoded_source(wanted.sentence, subword)[0] for wanted in sentences]
    for number, source in enumerate(encoded, start=1):
        check_length(source, model.most_positions, f"{arguments.sentences}:{number}")
    print(*count_heads(sentences, (attention_maps(model, subword, source, [EOS]) for source in encoded)).rows(), sep="\n")
    return 0


def _chosen(option: str, numbers: list[int] | None, count: int) -> list[int]:
    if beyond := [number for number in numbers or [] if number > count]:
        raise configuration_error(f"--{option}: {beyond[0]} requested, but the model has {count}")
    return numbers or list(range(1, count + 1))


def _numbers(text: str) -> list[int]:
    """Convert an argument of whole numbers above 0, separated by commas."""
    return sorted({positive_int(number) for number in text.split(",")})
