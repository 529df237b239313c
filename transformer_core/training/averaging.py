"""The mean of checkpoints' weights (paper 6.1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from transformer_core.models.directory import check_finite
from transformer_core.training.checkpoint import load_weights


def average(files: Sequence[Path]) -> dict[str, Tensor]:
    """Mean of checkpoints, rounded to float32 once. A shared matrix is in a file once.

    Each weight's values are sorted before they are summed in float64, so the order of the files makes no difference to the last bit.

    Raises:
        UserError: exit code 65; a checkpoint holds values that are not finite.
    """
    checkpoints = [load_weights(file) for file in files]
    for checkpoint, file in zip(checkpoints, files, strict=True):
        check_finite(checkpoint, file)
    return {
        name: torch.stack([checkpoint[name] for checkpoint in checkpoints]).double().sort(dim=0).values.mean(dim=0).to(torch.float32)
        for name in checkpoints[0]
    }
