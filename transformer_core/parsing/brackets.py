"""Labelled brackets of parse trees by the rules of EVALB with its COLLINS.prm (Sekine and Collins 1997), the standard for F1 on WSJ.

A bracket is a constituent's label and the words that it spans, counted as often as it occurs. Tags, TOP and traces are left out, and so is
punctuation, by its tag, so that a constituent's span does not depend on it. ADVP and PRT count as one label. The only Python package for
this, PYEVALB, has had no release since 2018.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transformer_core.parsing.trees import TOP, Tree, events, leaves, read_tree, repaired

_LEFT_OUT = frozenset({TOP, "-NONE-", ",", ":", "``", "''", "."})
_EQUAL = {"PRT": "ADVP"}


def bracket_counts(outputs: Sequence[str], golds: Sequence[str]) -> NDArray[np.int64]:
    """Return a row for each sentence: brackets of the gold tree, of the output's tree, in both; 1 if equal; 1 if it was repaired.

    Outputs are symbols (`trees.linearised`), or any text; golds are bracketed trees. Raises `ValueError`: the two differ in length, or a
    gold tree is malformed.
    """
    rows = []
    for output, line in zip(outputs, golds, strict=True):
        gold = read_tree(line)
        found, malformed = repaired(output, leaves(gold))
        gold_spans, found_spans = spans(gold), spans(found)
        matched = (gold_spans & found_spans).total()
        rows.append((gold_spans.total(), found_spans.total(), matched, gold_spans == found_spans, malformed))
    return np.array(rows, np.int64).reshape(-1, 5)


def f1(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return F1, the harmonic mean of precision and recall, in percent, of (..., 3 or more) counts; 0 for counts without a bracket."""
    gold, found, matched = np.moveaxis(counts, -1, 0)[:3]
    percent: NDArray[np.float64] = 200 * matched / np.maximum(gold + found, 1)
    return percent


def corpus_f1(outputs: Sequence[str], golds: Sequence[str]) -> float:
    """Return F1 of all brackets together, in percent; arguments and errors as in `bracket_counts`."""
    return float(f1(bracket_counts(outputs, golds).sum(0)))


def spans(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Return the brackets, as label, index of the first word and index after the last; words that are left out have no index."""
    found: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    place = 0
    for kind, node in events(tree):
        counts = node.label not in _LEFT_OUT
        if kind == "word":
            place += counts
        elif kind == "open":
            starts.append(place)
        elif (start := starts.pop()) < place and counts:
            found[_EQUAL.get(node.label, node.label), start, place] += 1
    return found
