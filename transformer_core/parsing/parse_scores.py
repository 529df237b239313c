"""Scores of parses by labelled brackets (brackets.py), and the comparison of two parsers: references are trees, outputs symbols."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_core.errors import UserError
from transformer_core.evaluation.scoring import Comparison, Score, Scores, Scoring
from transformer_core.evaluation.significance import SEED, TRIALS, compared, interval_of
from transformer_core.parsing.brackets import bracket_counts, corpus_f1, f1
from transformer_core.parsing.task import TASK
from transformer_core.parsing.trees import TREE_EXAMPLE, bracketed, leaves, linearised, read_tree, repaired

SIGNATURE = "F1|brackets:EVALB/COLLINS.prm|tags:gold|outputs:repaired"
_F1, _PRECISION, _RECALL = Score(TASK.key, TASK.score, has_interval=True), Score("precision", "precision"), Score("recall", "recall")
_EXACT, _MALFORMED = Score("exact_match", "exact"), Score("malformed", "repaired into a tree")


def score(outputs: Sequence[str], golds: Sequence[str]) -> Scores:
    """Score a model's outputs (symbols) against bracketed gold trees, line by line; F1's interval is a bootstrap's over sentences.

    Raises `ValueError`: the two differ in length or are empty, or a gold tree is malformed.
    """
    counts = bracket_counts(outputs, golds)
    if not len(counts):
        raise ValueError("no sentence")
    gold, found, matched, equal, malformed = counts.sum(0).tolist()
    values = {
        **dict(zip(_F1.keys, interval_of(f1, counts), strict=True)),
        _PRECISION.key: 100 * matched / max(found, 1),
        _RECALL.key: 100 * matched / max(gold, 1),
        _EXACT.key: 100 * equal / len(counts),
    }
    return Scores(len(counts), values, {_F1.key: SIGNATURE}, {_MALFORMED.key: 100 * malformed / len(counts)})


def sentence_f1(outputs: Sequence[str], golds: Sequence[str]) -> list[float]:
    """Return F1 of each sentence, in percent; 100 where neither tree has a bracket that counts, as in a sentence of one word."""
    counts = bracket_counts(outputs, golds)
    scores: list[float] = np.where(counts[:, 3], 100, f1(counts)).tolist()
    return scores


def comparisons(baseline: Sequence[str], candidate: Sequence[str], golds: Sequence[str]) -> Iterator[Comparison]:
    """Yield the comparison by F1."""
    if not len(baseline) == len(candidate) == len(golds) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} outputs for {len(golds)} gold trees")
    first, second = (bracket_counts(outputs, golds) for outputs in (baseline, candidate))
    yield compared(_F1, first, second, f1, f"{SIGNATURE}|ar:{TRIALS}|seed:{SEED}")


def check_references(path: Path, golds: Sequence[str], _allow_tokenised: bool) -> Iterator[str]:
    """Raise a `UserError` (65) that names the first line without a tree; there is nothing to warn of."""
    for number, line in enumerate(golds, start=1):
        try:
            read_tree(line)
        except ValueError:
            raise UserError(f"{path}:{number}: not one tree in brackets", TREE_EXAMPLE) from None
    yield from ()


def as_symbols(output: str) -> str:
    """Return an output as symbols: a tree in brackets, as most parsers write it, is linearised, and any other text stays."""
    try:
        return linearised(read_tree(output))
    except ValueError:
        return output


SCORING = Scoring(
    task=TASK,
    scores=(_F1, _PRECISION, _RECALL, _EXACT),
    shares=(_MALFORMED,),
    score_sets=lambda sets, _sources, _manifest: {split: score(*of_set) for split, of_set in sets.items()},
    main_score=lambda outputs, golds, _all: corpus_f1(outputs, golds),
    sentence_scores=sentence_f1,
    of_sentences=TASK.score,
    is_right=lambda _output, _gold, found: found == 100,
    comparisons=comparisons,
    check_references=check_references,
    outputs="trees",
    purpose="Parses **{source}**: one sentence a line, with spaces between words, becomes the symbols of its tree (docs/parsing.md).",
    package="transformer_core.parsing",
    marks_words=False,  # A gold tree and an output are written differently, and words would never mark a closing bracket.
    as_scored=as_symbols,
    as_shown=lambda output, gold: bracketed(repaired(output, leaves(read_tree(gold)))[0]),
)
