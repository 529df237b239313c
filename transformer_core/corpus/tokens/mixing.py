"""Mixes: in each stage of a training, an epoch draws pairs of the corpus' parts in proportion to weights (`train.mix`)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import PARAMS_FILE, Train
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.errors import configuration_error


class Mix(NamedTuple):
    """The stages of a training.

    Attributes:
        part_of: (pairs,) number of each pair's part.
        ends: the updates after which each stage but the last ends, ascending.
        weights: of each stage the weight of each part.
    """

    part_of: NDArray[np.uint16]
    ends: Sequence[int]
    weights: Sequence[Sequence[float]]

    def drawn(self, stage: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw the pairs of an epoch: as many as the parts with a weight have.

        Of a part with fewer pairs than its share each is drawn as often as another, but for one; of a larger one none is drawn twice.
        """
        weights = np.array(self.weights[stage])
        sizes = np.bincount(self.part_of, minlength=len(weights))
        shares = weights / weights.sum() * sizes[weights > 0].sum()
        chosen = []
        for part in np.flatnonzero(weights).tolist():
            pairs = np.flatnonzero(self.part_of == part)
            whole, rest = divmod(max(round(shares[part]), 1), len(pairs))
            chosen += [pairs] * whole + [random.permutation(pairs)[:rest]]
        return np.concatenate(chosen)


def mix_of(settings: Train, split: BinarizedSplit) -> Mix | None:
    """Return the mix of section `train`, if it has one. Raises `UserError` (78): no training pair is of a part that it names."""
    if settings.mix is None:
        return None
    sizes = np.bincount(split.part_of, minlength=len(split.part_names))
    names = [name for name, size in zip(split.part_names, sizes, strict=True) if size]
    for number, stage in enumerate(settings.mix):
        key = f"{PARAMS_FILE}: train.mix.{number}.weights"
        if unknown := sorted(stage.weights.keys() - set(names)):
            known = f"Its parts: {', '.join(names)}." if names else "Give its sources a `name` (corpora/README.md)."
            raise configuration_error(f"{key}: the training pairs have no part {unknown[0]!r}", known)
    weights = [[stage.weights.get(name, 0.0) for name in split.part_names] for stage in settings.mix]
    return Mix(split.part_of, settings.stage_ends, weights)
