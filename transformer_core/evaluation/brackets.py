"""Labelled brackets of parse trees by the rules of EVALB with its COLLINS.prm (Sekine and Collins 1997), the standard for F1 on WSJ.

A bracket is a constituent's label and the words that it spans, counted as often as it occurs. Tags, TOP and traces are left out, and so is
punctuation, by its tag, so that a constituent's span does not depend on it. ADVP and PRT count as one label. The only Python package for
this, PYEVALB, has had no release since 2018.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformer_core.corpus.trees import TOP, Repaired, Tree, events, leaves, read_tree, repaired

_LEFT_OUT = frozenset({TOP, "-NONE-", ",", ":", "``", "''", "."})
_EQUAL = {"PRT": "ADVP"}


class Brackets(NamedTuple):
    """Counts over one or several sentences: brackets of the gold tree, of the tree found, in both; sentences without a difference."""

    gold: int
    found: int
    matched: int
    exact: int

    @property
    def precision(self) -> float:
        """Percentage of the found brackets that are in the gold trees; 0 if no bracket was found."""
        return 100 * self.matched / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Percentage of the gold trees' brackets that were found; 0 if the gold trees have no bracket."""
        return 100 * self.matched / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """2 matched / (gold + found), the harmonic mean of precision and recall, in percent."""
        return 200 * self.matched / (self.gold + self.found) if self.matched else 0.0


def total(counts: Iterable[Brackets]) -> Brackets:
    """Return the sum over sentences."""
    return Brackets(*map(sum, zip(*counts, strict=True)))


def compare(gold: Tree, found: Tree) -> Brackets:
    """Count the brackets of a sentence; both trees are over its words."""
    gold_spans, found_spans = spans(gold), spans(found)
    matched = (gold_spans & found_spans).total()
    sizes = gold_spans.total(), found_spans.total()
    return Brackets(*sizes, matched, exact=int(sizes == (matched, matched)))


def spans(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Return the brackets, as label, index of the first word and index after the last; words that are left out have no index."""
    found: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    place = 0
    for kind, node in events(tree):
        if kind == "word":
            place += counted(node.label) is not None
        elif kind == "open":
            starts.append(place)
        elif (start := starts.pop()) < place and (label := counted(node.label)) is not None:
            found[(label, start, place)] += 1
    return found


def counted(label: str) -> str | None:
    """Return the label under which a constituent's label or a word's tag is counted; None if it is left out."""
    return None if label in _LEFT_OUT else _EQUAL.get(label, label)


def compare_outputs(outputs: Sequence[str], golds: Sequence[str]) -> list[tuple[Brackets, Repaired]]:
    """Return each output's counts against its gold tree, and the output repaired into a tree.

    Args:
        outputs: a model's outputs (symbols, `trees.linearised`); any text is accepted.
        golds: the same number of bracketed trees.

    Raises:
        ValueError: the two differ in length, or a gold tree is malformed.
    """
    compared = []
    for output, line in zip(outputs, golds, strict=True):
        gold = read_tree(line)
        found = repaired(output, leaves(gold))
        compared.append((compare(gold, found.tree), found))
    return compared


def corpus_f1(outputs: Sequence[str], golds: Sequence[str]) -> float:
    """Return F1 of all brackets together, in percent; arguments and errors as in `compare_outputs`."""
    return total(counts for counts, _ in compare_outputs(outputs, golds)).f1
