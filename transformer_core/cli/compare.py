"""`transformer-core compare`: two systems' translations of the same sentences, side by side."""

import argparse
import json
import sys
from pathlib import Path
from typing import get_args

from transformer_core.cli.arguments import Commands, add_command
from transformer_core.errors import configuration_error
from transformer_core.tasks import Tokenizer, task_of


def add_to(commands: Commands) -> None:
    summary = "compare two systems' translations: scores, significance, the sentences that differ most"
    add = add_command(commands, "compare", run, summary, "ours.de theirs.de --ref reference.de --source news.en").add_argument
    add("a", metavar="HYP_A", type=Path, help="detokenised translations of system A, or a parser's outputs: trees in brackets or symbols")
    add("b", metavar="HYP_B", type=Path, help="those of system B for the same sentences")
    add("--ref", metavar="R", type=Path, required=True, help="reference translations, or for parsers a .tree file of gold trees")
    add("--source", metavar="S", type=Path, help="source sentences, to show beside the outputs")
    add("--tokenize", metavar="T", choices=get_args(Tokenizer), help="tokeniser of BLEU (default: by the suffix of R)")
    add("--comet", metavar="C", help="command that scores translations (docs/evaluation.md); needs --source")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; warn on standard error if the references look tokenised or are normalised."""
    from transformer_core.evaluation.bleu import tokenizer_of
    from transformer_core.evaluation.comparison import comparison_text, side_by_side
    from transformer_core.evaluation.neural import with_comet
    from transformer_core.evaluation.scoring import read_aligned, scoring_of

    if arguments.comet and not arguments.source:
        raise configuration_error("--comet: needs the source sentences", "Name their file with --source.")
    sources = [arguments.source] if arguments.source else []
    references, a, b, *source = read_aligned(arguments.ref, arguments.a, arguments.b, *sources)
    language = arguments.ref.suffix[1:]
    scoring = scoring_of(task_of(language), tokenizer_of(language, arguments.tokenize))
    for warning in scoring.check_references(arguments.ref, references, True):
        print(warning, file=sys.stderr)
    with with_comet(scoring, arguments.comet, "--comet", lambda _: source[0]) as scoring:
        compared = side_by_side(scoring, a, b, references, source[0] if source else None)
    if arguments.json:
        text = json.dumps(compared.document(), indent=2, ensure_ascii=False)
    else:
        text = f"A is {arguments.a}\nB is {arguments.b}\n\n{comparison_text(compared)}"
    sys.stdout.buffer.write(f"{text}\n".encode(errors="surrogateescape"))  # The names of the files need not be UTF-8.
    return 0
