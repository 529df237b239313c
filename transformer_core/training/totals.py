"""What an update adds up on the device, and how its totals reach this process without a wait."""

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_core.corpus.batches import Update
from transformer_core.models.translation import TranslationModel

# Smoothed loss and NLL, sums over tokens; whether to stop; the norm of the gradient; whether the update was skipped.
SMOOTHED, NLL, STOP, GRADIENT_NORM, SKIPPED = range(5)
_TOTALS = 5


class Sums:
    """Gradients of all parameters and the totals of an update in one flat buffer, so that one reduction adds up everything.

    A single reduction in a fixed order is also what makes a resumed training equal to the bit at any number of ranks; reducing bucket
    by bucket, as DistributedDataParallel does, depends on buckets that are laid out anew after a start.
    """

    def __init__(self, model: TranslationModel, device: torch.device) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in parameters)
        self.everything = torch.zeros(size + _TOTALS, dtype=parameters[0].dtype, device=device)
        self.gradients, self.totals = self.everything[:size], self.everything[size:]
        start = 0
        for parameter in parameters:
            parameter.grad = self.gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def clear(self) -> None:
        """Make all sums zero, for the next update."""
        self.everything.zero_()


class OnTheWay:
    """Totals of updates between the device and this process: copied behind the device's work, read when they are wanted."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._sent: deque[tuple[int, Update, Tensor, torch.cuda.Event | None]] = deque()

    def send(self, number: int, update: Update, totals: Tensor) -> None:
        """Start the copy of an update's totals."""
        copy = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=self._pinned)
        copy.copy_(totals, non_blocking=True)
        event = torch.cuda.Event() if self._pinned else None
        if event is not None:
            event.record()
        self._sent.append((number, update, copy, event))

    def arrived(self, leave: int) -> Iterator[tuple[int, Update, list[float]]]:
        """Take all but the last `leave` in order, waiting for the device where it has not come so far."""
        while len(self._sent) > leave:
            number, update, copy, event = self._sent.popleft()
            if event is not None:
                event.synchronize()
            yield number, update, copy.tolist()
