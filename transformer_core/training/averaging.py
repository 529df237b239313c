"""The mean of the last checkpoints' weights (paper 6.1)."""

from pathlib import Path

import torch
from torch import Tensor

from transformer_core.errors import UserError
from transformer_core.training.checkpoint import checkpoint_files, load_weights


def average_last(directory: Path, last: int) -> dict[str, Tensor]:
    """Mean of the last `last` checkpoints in a directory, summed in float64 and rounded once. A shared matrix stands in a file once.

    Raises:
        UserError: exit code 65; fewer checkpoints than asked for.
    """
    files = checkpoint_files(directory)[-last:]
    if len(files) < last:
        raise UserError(f"{directory}: {len(files)} checkpoints, average.last asks for {last}", "Train again: dvc repro --force train")
    total: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in load_weights(file).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / last).to(torch.float32) for name, tensor in total.items()}
