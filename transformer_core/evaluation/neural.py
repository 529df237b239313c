"""COMET, or another learnt metric, as a score beside those of sacreBLEU: by a command, see transformer_core/external.py."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.evaluation.metrics import COMET
from transformer_core.evaluation.scoring import Comparison, Scores, Scoring, untagged
from transformer_core.evaluation.significance import SEED, TRIALS, compared
from transformer_core.external import Scorer


@contextmanager
def with_comet(scoring: Scoring, command: str | None, setting: str, sources: Callable[[str], Sequence[str]]) -> Iterator[Scoring]:
    """Give the scoring with COMET, 100 times the mean of the command's scores; without a command the scoring as it is.

    The interval is that of a mean over sentences, which is close to normal.

    Args:
        setting: where the command was named, for errors.
        sources: returns the sources of a set; the command gets them without the tags of target languages.
    """
    if command is None:
        yield scoring
        return
    with Scorer(command, setting) as scorer:

        def percent(split: str, *texts: Sequence[str]) -> NDArray[np.float64]:
            return 100 * np.array(scorer.scores(untagged(sources(split)), *texts))

        def score_sets(
            sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], of_test: Sequence[str], manifest: Mapping[str, Any]
        ) -> dict[str, Scores]:
            found = scoring.score_sets(sets, of_test, manifest)
            for split, of_set in sets.items():
                each = percent(split, *of_set)
                mean, half = float(each.mean()), 1.96 * float(each.std()) / len(each) ** 0.5
                values = {**found[split].values, **dict(zip(COMET.keys, (mean, mean - half, mean + half), strict=True))}
                found[split] = replace(found[split], values=values, signatures={**found[split].signatures, COMET.key: command})
            return found

        def comparisons(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> Iterator[Comparison]:
            yield from scoring.comparisons(baseline, candidate, references)
            first, second = (percent("test", side, references)[:, None] for side in (baseline, candidate))
            yield compared(COMET, first, second, lambda sums: sums[:, 0] / len(first), f"{command}|ar:{TRIALS}|seed:{SEED}")

        yield replace(scoring, score_sets=score_sets, comparisons=comparisons)
