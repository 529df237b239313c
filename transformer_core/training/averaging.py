"""The mean of checkpoints' weights (paper 6.1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from transformer_core.training.checkpoint import load_weights


def average(files: Sequence[Path]) -> dict[str, Tensor]:
    """Mean of checkpoints, rounded to float32 once. A shared matrix stands in a file once.

    Each weight's values are sorted before they are summed in float64, so the order of the files makes no difference to the last bit.
    """
    checkpoints = [load_weights(file) for file in files]
    return {
        name: torch.stack([checkpoint[name] for checkpoint in checkpoints]).double().sort(dim=0).values.mean(dim=0).to(torch.float32)
        for name in checkpoints[0]
    }
