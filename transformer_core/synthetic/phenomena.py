"""The grammatical phenomena that label a pair: one bit each, so that the labels of a sentence are the bitwise or of its parts' labels."""

from functools import cache

ADJECTIVE_AGREEMENT = 1 << 0
CASE = 1 << 1
GENITIVE = 1 << 2
PRONOUN_AGREEMENT = 1 << 3
REFLEXIVE = 1 << 4
VERB_SECOND = 1 << 5
VERB_LAST = 1 << 6
RELATIVE_CLAUSE = 1 << 7
INFINITIVE_CLAUSE = 1 << 8
QUESTION = 1 << 9
SEPARABLE_VERB = 1 << 10
MODAL_VERB = 1 << 11
PERFECT_HABEN = 1 << 12
PERFECT_SEIN = 1 << 13
NEGATION_KEIN = 1 << 14
NEGATION_NICHT = 1 << 15
NUMBER = 1 << 16
DATE = 1 << 17
CLOCK_TIME = 1 << 18
AMBIGUOUS_WORD = 1 << 19

# Names of the bits, in their order.
PHENOMENA: tuple[str, ...] = tuple(name.lower() for name in list(vars()) if name.isupper())


@cache
def names(labels: int) -> tuple[str, ...]:
    """Return the names of the bits that are set, in the order of `PHENOMENA`."""
    return tuple(name for bit, name in enumerate(PHENOMENA) if labels >> bit & 1)
