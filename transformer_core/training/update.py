"""One update: the gradients of a global batch, summed over ranks, and a step of Adam at the paper's learning rate (5.3)."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer_core.config import Train
from transformer_core.corpus.tokens.batches import GlobalBatch
from transformer_core.models.ops.choice import TrainingOps
from transformer_core.models.ops.gradient_graphs import GradientGraphs
from transformer_core.models.ops.packed import PackedBatch, on_device
from transformer_core.models.ops.packed_transformer import LowCopies
from transformer_core.models.translation import TranslationModel
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import Batch, RankBatch
from transformer_core.training.loss import cross_entropy

# Indices of an update's totals: smoothed loss and NLL, summed over tokens; stop requests; the gradient's norm; 1 if it was skipped.
SMOOTHED, NLL, STOP, GRADIENT_NORM, SKIPPED = range(5)
_TOTALS = 5


def learning_rate(update: int, d_model: int, warmup: int, factor: float) -> float:
    """Return factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5) (paper 5.3, eq. 3); `update` counts from 1."""
    return factor * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)


def cooldown_factor(update: int, updates: int, share: float) -> float:
    """Return the cooldown's factor of the learning rate: 1, then equal steps down to almost 0 over the last `share` of the updates."""
    return min(1.0, (updates - update + 1) / (round(share * updates) + 1))


def seed_everything(seed: int, update: int, microbatch: int) -> None:
    """Seed torch's generators by (seed, update, micro-batch), so that dropout does not depend on the rank that computes it.

    Only those of the CPU and of this rank's GPU: `torch.manual_seed` formats a stack for each backend not in use, in 0.1 ms or more.
    """
    digest = int.from_bytes(hashlib.blake2b(f"{seed}/{update}/{microbatch}".encode(), digest_size=8).digest())
    torch.default_generator.manual_seed(digest)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(digest)


def weights_checksum(model: nn.Module) -> int:
    """Return the sum of the weights' bits, as integers modulo 2^64: it differs if one bit of one weight does."""
    integers = {4: torch.int32, 8: torch.int64}
    sums = [weight.detach().view(integers[weight.element_size()]).sum(dtype=torch.int64) for weight in model.parameters()]
    return int(torch.stack(sums).sum())


class ReductionBuffer:
    """Gradients of all parameters and the totals of an update in one flat buffer, so that one reduction sums them all.

    A single reduction in a fixed order also makes a resumed training equal bit for bit, at any number of ranks. DistributedDataParallel
    lays out its buckets anew after a start, which changes the order of summation.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes) + _TOTALS, dtype=parameters[0].dtype, device=device)
        self.gradients, self.totals = self.flat.split([sum(sizes), _TOTALS])
        for parameter, gradient in zip(parameters, self.gradients.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)


@dataclass(eq=False)
class Updater:
    """Updates a model in place; `scales` is whether the loss is scaled for fp16.

    Gradients of summed token losses are divided by the global number of target tokens and summed over ranks once. With a
    Transformer no method waits for the device; recurrent layers need the lengths of sentences on the CPU.
    """

    model: TranslationModel
    settings: Train
    rank: Rank
    ops: TrainingOps

    def __post_init__(self) -> None:
        model, settings, rank, ops = self.model, self.settings, self.rank, self.ops
        betas = settings.adam_beta1, settings.adam_beta2
        self._optimizer = torch.optim.Adam(model.parameters(), betas=betas, eps=settings.adam_epsilon, fused=True)
        # Small gradients would underflow in fp16; in any other precision it does nothing.
        self._scaler = torch.amp.GradScaler(rank.device.type, init_scale=2.0**13, enabled=ops.low == torch.float16)
        self.scales = self._scaler.is_enabled()
        self._copies = None if ops.packed is None or ops.low is None else LowCopies(ops.packed, ops.low)
        first = [] if self._copies is None else self._copies.originals
        others = [weight for weight in model.parameters() if weight.requires_grad and all(weight is not known for known in first)]
        self._buffer = ReductionBuffer([*first, *others], rank.device)
        self._graphs = GradientGraphs(self._buffer.flat) if ops.captures else None
        self._pending: deque[tuple[int, GlobalBatch, Tensor, torch.cuda.Event | None]] = deque()

    def run(self, number: int, share: RankBatch, stop_asked: Callable[[], bool]) -> None:
        """Make update `number`, from 1, on this rank's share. If the loss or a gradient is not finite, the model is unchanged."""
        self._buffer.flat.zero_()
        for position, batch in share.microbatches.items():
            self._run(batch, share.update.target_tokens, partial(seed_everything, self.settings.seed, number, position))
        totals = self._buffer.totals
        totals[STOP].fill_(float(stop_asked()))
        self.rank.sum_over_ranks(self._buffer.flat)
        self._scaler.unscale_(self._optimizer)
        totals[GRADIENT_NORM] = self._buffer.gradients.norm()
        broken = ~totals.isfinite().all()
        totals[SKIPPED] = broken
        self._step(number, broken)
        self._scaler.update()
        on_gpu = totals.is_cuda
        copy = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=on_gpu).copy_(totals, non_blocking=True)
        self._pending.append((number, share.update, copy, torch.cuda.current_stream().record_event() if on_gpu else None))

    def totals(self, leave: int) -> Iterator[tuple[int, GlobalBatch, list[float]]]:
        """Yield number, update and totals of all but the last `leave` updates, in order; wait for copies that are not complete."""
        while len(self._pending) > leave:
            number, update, copy, event = self._pending.popleft()
            if event is not None:
                event.synchronize()
            yield number, update, copy.tolist()

    def dry_run(self, number: int, batches: Iterable[Batch | PackedBatch]) -> None:
        """Use the memory of update `number` on these micro-batches, without changing the model."""
        for batch in batches:
            self._run(batch, 1, lambda: None)
            if self._graphs is not None:  # As before the capture of a further shape, while the graphs' memory is reserved.
                self._add_gradients(batch, 1)
        self._step(number, broken=torch.ones((), device=self.rank.device))

    def learning_rate(self, number: int) -> float:
        """Return the learning rate of an update."""
        settings = self.settings
        rate = learning_rate(number, self.model.d_model, settings.warmup, settings.learning_rate_factor)
        return rate * cooldown_factor(number, settings.updates, settings.cooldown)

    def state(self) -> dict[str, Any]:
        """Return the state of weights, optimiser and scaler; its tensors are not copies."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state. Its scaler is empty if it was saved where no scaler was needed."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

    def _run(self, batch: Batch | PackedBatch, target_tokens: int, seed: Callable[[], None]) -> None:
        if self._graphs is not None and isinstance(batch, PackedBatch):
            self._graphs.run(batch, target_tokens, seed, self._add_gradients)
        else:
            seed()
            self._add_gradients(batch, target_tokens)

    def _add_gradients(self, batch: Batch | PackedBatch, target_tokens: int | Tensor) -> None:
        settings, batch = self.settings, on_device(batch, self.rank.device)
        with autocast(self.rank.device, settings.precision):
            if isinstance(batch, PackedBatch):
                assert self._copies is not None
                decoded = self._copies.decoded(batch)
            else:
                decoded = batch.decoded(self.model)
            # R-Drop's two passes are one over rows that come twice: dropout draws a mask for each row.
            loss = cross_entropy(*self.model.factors(decoded), batch.targets, settings.label_smoothing, settings.r_drop)
        self._scaler.scale(loss.objective / target_tokens).backward()
        with torch.no_grad():
            if self._copies is not None and isinstance(batch, PackedBatch):
                self._copies.add_gradients(self._buffer.gradients)
            self._buffer.totals[SMOOTHED] += loss.smoothed
            self._buffer.totals[NLL] += loss.nll

    def _step(self, number: int, broken: Tensor) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate(number)
        # Set as a gradient scaler does: if it is 1, Adam's fused kernel does not change weights, moments and its count of steps.
        self._optimizer.found_inf = broken.float()  # type: ignore[attr-defined]
        self._optimizer.step()
