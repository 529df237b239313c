"""`transformer-core score`: log-probabilities that a model gives to the translations in a file."""

import argparse
import math
import sys
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command, add_computing_arguments, chosen_device, positive_int, use_threads
from transformer_core.corpus.text import read_pairs
from transformer_core.errors import UserError

_PAIRS_AT_ONCE = 1_024  # Enough for batches of similar length.


def add_to(commands: Commands) -> None:
    summary = "print log-probabilities of given translations, and their perplexity"
    parser = add_command(commands, "score", run, summary, "--model models/averaged news.en news.de")
    parser.add_argument("source", metavar="SOURCE", type=Path, help="source sentences, one a line; may be compressed (.gz, .xz)")
    parser.add_argument("target", metavar="TARGET", type=Path, help="their translations, line by line")
    parser.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    parser.add_argument("--tokens", action="store_true", help="add each piece and its log-probability")
    parser.add_argument("--max-input", metavar="N", type=positive_int, help="a sentence has at most N tokens (default: 1024)")
    add_computing_arguments(parser, "tokens of a side")


def run(arguments: argparse.Namespace) -> int:
    """Write log-probability and tokens of each pair, and to standard error the perplexity of all whose source is not empty."""
    from transformer_core.config import MOST_INPUT
    from transformer_core.corpus.tokens.subword import EOS, printable
    from transformer_core.decoding.scoring import score_tokens
    from transformer_core.decoding.translator import BATCH_TOKENS, check_length, load_for_decoding
    from transformer_core.training.loss import perplexity

    files = arguments.source, arguments.target
    pairs = list(read_pairs(*files))  # At once, so that an error in the last line is raised before scoring.
    use_threads(arguments.threads)
    model, subword = load_for_decoding(arguments.model, device=chosen_device(arguments.device))
    if not any(subword.encode(source) != [EOS] for source, _ in pairs):
        raise UserError(f"{arguments.source}: holds no sentence, so there is nothing to score")
    most = arguments.max_input or MOST_INPUT
    counted: list[tuple[float, int]] = []
    for first in range(0, len(pairs), _PAIRS_AT_ONCE):
        chunk = [(subword.encode(source), subword.of_target.encode(target)) for source, target in pairs[first : first + _PAIRS_AT_ONCE]]
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
