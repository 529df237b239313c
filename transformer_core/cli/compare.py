"""`transformer-core compare`: two systems' translations of the same sentences, side by side."""

import argparse
import json
import sys
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "compare",
        "two systems' translations: scores, significance, the sentences that differ most",
        "transformer-core compare ours.de theirs.de --ref reference.de --source news.en",
    )
    parser.add_argument("a", metavar="HYP_A", type=Path, help="detokenised translations, one a line")
    parser.add_argument("b", metavar="HYP_B", type=Path, help="another system's of the same sentences")
    parser.add_argument("--ref", metavar="R", type=Path, required=True, help="the right translations, line by line")
    parser.add_argument("--source", metavar="S", type=Path, help="the sentences translated, to be shown beside")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; warn on standard error if the references look tokenised."""
    from transformer_core.evaluation.comparison import scores_table, sentences_text, side_by_side
    from transformer_core.evaluation.metrics import looks_tokenised, read_aligned

    sources = [arguments.source] if arguments.source else []
    references, a, b, *source = read_aligned(arguments.ref, arguments.a, arguments.b, *sources)
    if looks_tokenised(references):
        print(f"{arguments.ref}: looks tokenised; these scores compare with each other and with no others.", file=sys.stderr)
    compared = side_by_side(a, b, references, source[0] if source else None)
    if arguments.json:
        text = json.dumps(compared.document(), indent=2, ensure_ascii=False)
    else:
        text = "\n\n".join([f"A is {arguments.a}\nB is {arguments.b}", scores_table(compared), sentences_text(compared)])
    sys.stdout.buffer.write(f"{text}\n".encode())
    return 0
