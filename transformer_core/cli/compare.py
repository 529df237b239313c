"""`transformer-core compare`: two systems' translations of the same sentences, side by side."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "compare",
        "compare two systems' translations: scores, significance, the sentences that differ most",
        "transformer-core compare ours.de theirs.de --ref reference.de --source news.en",
    )
    parser.add_argument(
        "a", metavar="HYP_A", type=Path, help="detokenised translations of system A, or a parser's outputs: trees in brackets or symbols"
    )
    parser.add_argument("b", metavar="HYP_B", type=Path, help="those of system B for the same sentences")
    parser.add_argument(
        "--ref",
        metavar="R",
        type=Path,
        required=True,
        help="the reference translations, line by line; for parsers the gold trees, in a file whose name ends in .tree",
    )
    parser.add_argument("--source", metavar="S", type=Path, help="the source sentences, to show beside the outputs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; warn on standard error if the references look tokenised."""
    from transformer_core.config import TREES
    from transformer_core.evaluation.comparison import scores_table, sentences_text, side_by_side
    from transformer_core.evaluation.metrics import looks_tokenised, read_aligned, unlike_outputs

    sources = [arguments.source] if arguments.source else []
    references, a, b, *source = read_aligned(arguments.ref, arguments.a, arguments.b, *sources)
    trees = arguments.ref.suffix == f".{TREES}"
    if trees:
        _check_trees(arguments.ref, references)
    elif looks_tokenised(references):
        print(f"{arguments.ref}: looks tokenised; compare these scores only with each other.", file=sys.stderr)
    if not trees and (note := unlike_outputs(arguments.ref, references)):
        print(note, file=sys.stderr)
    compared = side_by_side(a, b, references, source[0] if source else None, trees)
    if arguments.json:
        text = json.dumps(compared.document(), indent=2, ensure_ascii=False)
    else:
        text = "\n\n".join([f"A is {arguments.a}\nB is {arguments.b}", scores_table(compared), sentences_text(compared)])
    sys.stdout.buffer.write(f"{text}\n".encode(errors="surrogateescape"))  # The names of the files need not be UTF-8.
    return 0


def _check_trees(path: Path, lines: Sequence[str]) -> None:
    """Raise a `UserError` (exit code 65) that names the first line without a tree."""
    from transformer_core.corpus.trees import TREE_EXAMPLE, read_tree
    from transformer_core.errors import UserError

    for number, line in enumerate(lines, start=1):
        try:
            read_tree(line)
        except ValueError:
            raise UserError(f"{path}:{number}: not one tree in brackets", TREE_EXAMPLE) from None
