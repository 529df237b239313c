"""`transformer-core score` and `compare`: log-probabilities that a model gives to translations; those of two systems side by side."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import get_args

from transformer_core.cli.arguments import Commands, add_command, add_computing_arguments, chosen_device, positive_int
from transformer_core.compressed import without_packing
from transformer_core.corpus.text import read_pairs
from transformer_core.errors import UserError, configuration_error
from transformer_core.tasks import Tokenizer, task_of

_PAIRS_AT_ONCE = 1_024  # Enough for batches of similar length.


def add_to(commands: Commands) -> None:
    summary = "print log-probabilities of given translations, and their perplexity"
    parser = add_command(commands, "score", run_score, summary, "--model models/averaged news.en news.de")
    parser.add_argument("source", metavar="SOURCE", type=Path, help="source sentences, one a line; may be compressed (.gz, .xz)")
    parser.add_argument("target", metavar="TARGET", type=Path, help="their translations, line by line")
    parser.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    parser.add_argument("--tokens", action="store_true", help="add each piece and its log-probability")
    parser.add_argument("--max-input", metavar="N", type=positive_int, help="a sentence has at most N tokens (default: 1024)")
    add_computing_arguments(parser, "tokens of a side")
    summary = "compare two systems' translations: scores, significance, the sentences that differ most"
    add = add_command(commands, "compare", run_compare, summary, "ours.de theirs.de --ref reference.de --source news.en").add_argument
    add("a", metavar="HYP_A", type=Path, help="detokenised translations of system A, or a parser's outputs: trees in brackets or symbols")
    add("b", metavar="HYP_B", type=Path, help="those of system B for the same sentences")
    add("--ref", metavar="R", type=Path, required=True, help="reference translations, or for parsers a .tree file of gold trees")
    add("--source", metavar="S", type=Path, help="source sentences, to show beside the outputs")
    add("--tokenize", metavar="T", choices=get_args(Tokenizer), help="tokeniser of BLEU (default: by the suffix of R)")
    add("--comet", metavar="C", help="command that scores translations (docs/evaluation.md); needs --source")
    add("--json", action="store_true", help="print JSON")


def run_score(arguments: argparse.Namespace) -> int:
    """Write log-probability and tokens of each pair, and to standard error the perplexity of all whose source is not empty."""
    import torch

    from transformer_core.config import MOST_INPUT
    from transformer_core.corpus.tokens.encoding import encoded
    from transformer_core.corpus.tokens.subword import EOS, printable
    from transformer_core.decoding.scoring import score_tokens
    from transformer_core.decoding.translator import BATCH_TOKENS, check_length, load_for_decoding
    from transformer_core.training.loss import perplexity

    files = arguments.source, arguments.target
    pairs = list(read_pairs(*files))  # At once, so that an error in the last line is raised before scoring.
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model, subword = load_for_decoding(arguments.model, device=chosen_device(arguments.device))
    if not any(subword.encode(source) != [EOS] for source, _ in pairs):
        raise UserError(f"{arguments.source}: holds no sentence, so there is nothing to score")
    most = arguments.max_input or MOST_INPUT
    counted: list[tuple[float, int]] = []
    for first in range(0, len(pairs), _PAIRS_AT_ONCE):
        chunk = [encoded(pair, subword) for pair in pairs[first : first + _PAIRS_AT_ONCE]]
        for line, pair in enumerate(chunk, start=first + 1):
            for tokens, path in zip(pair, files, strict=True):
                check_length(tokens, model.most_positions, f"{path}:{line}")
                if len(tokens) - 1 > most:
                    message = f"{path}:{line}: {len(tokens) - 1:,} tokens, at most {most:,} are scored"
                    raise UserError(message, "Split the sentence, or raise --max-input.")
        sources, targets = (list(side) for side in zip(*chunk, strict=True))
        found = score_tokens(model, sources, targets, arguments.batch_tokens or BATCH_TOKENS)
        for source, target, logs in zip(sources, targets, found, strict=True):
            row = [f"{math.fsum(logs):.4f}", str(len(logs))]
            if arguments.tokens:
                row.append(" ".join(f"{printable(subword.pieces[token])} {log:.4f}" for token, log in zip(target, logs, strict=True)))
            sys.stdout.buffer.write(("\t".join(row) + "\n").encode())
            if source != [EOS]:
                counted.append((math.fsum(logs), len(logs)))
        sys.stdout.flush()
    total = sum(count for _, count in counted)
    nll = -math.fsum(log_probability for log_probability, _ in counted) / total
    left_out = len(pairs) - len(counted)
    note = f"; {left_out:,} with an empty source left out" if left_out else ""
    print(f"perplexity {perplexity(nll):,.4f}, {total:,} tokens, {len(counted):,} lines{note}", file=sys.stderr)
    return 0


def run_compare(arguments: argparse.Namespace) -> int:
    """Print the comparison; warn on standard error if the references look tokenised or are normalised."""
    from transformer_core.evaluation.bleu import tokenizer_of
    from transformer_core.evaluation.comparison import comparison_text, side_by_side
    from transformer_core.evaluation.neural import with_comet
    from transformer_core.evaluation.scoring import read_aligned, scoring_of

    if arguments.comet and not arguments.source:
        raise configuration_error("--comet: needs the source sentences", "Name their file with --source.")
    references, a, b, *source = read_aligned(arguments.ref, arguments.a, arguments.b, *filter(None, [arguments.source]))
    language = Path(without_packing(arguments.ref.name)).suffix[1:]
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
