"""Which validations were best: by this checkpoints are kept and averaged, and training ends early."""

from math import isnan

# Measures of which less is better; of the others more is.
_LESS_IS_BETTER = frozenset({"nll", "perplexity"})


def best_updates(scores: dict[int, float], measure: str, count: int) -> list[int]:
    """The `count` updates whose validations scored best, best first; of equal ones the earlier, and what is no number last."""
    sign = 1 if measure in _LESS_IS_BETTER else -1
    return sorted(scores, key=lambda update: (isnan(scores[update]), sign * scores[update], update))[:count]


def validations_since_best(scores: dict[int, float], measure: str) -> int:
    """How many validations came after the best one."""
    best = best_updates(scores, measure, 1)
    return sum(update > best[0] for update in scores) if best else 0
