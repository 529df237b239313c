"""The Transformer over sentences without padding: another forward pass over the weights of the model, with the same results."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention
from transformer_core.models.embeddings import TokenEmbedding
from transformer_core.models.layers import EncoderLayer, FeedForward, Residual, normed
from transformer_core.models.ops.packed import Packed, PackedBatch, Segments, packed_attention
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import as_autocast

LONGEST_OF_SHORT = 128  # Tokens of a sentence: one program of the kernel for short sentences holds all of its scores.
_WIDEST_OF_SHORT = 64  # Its d_k: a block of a wider one needs more shared memory than an Ada GPU has.


class _Stream(NamedTuple):
    """What runs through all layers, (1, n, D), once for each of its two uses: a kernel then adds up their gradients itself."""

    residual: Tensor
    entering: Tensor


class PackedTransformer(nn.Module):
    """A Transformer in training, over packed batches; `model` keeps its weights, and `kernels` is whether to use the Triton kernels."""

    def __init__(self, model: Transformer, kernels: bool) -> None:
        super().__init__()
        self.model = model
        self._kernels = kernels
        self._has_short = kernels and model.size.d_k <= _WIDEST_OF_SHORT

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the same as `Transformer.forward`: (n, D), a row for each target token."""
        model, source, target = self.model, batch.source, batch.shifted
        short = self._has_short and max(source.longest, target.longest) <= LONGEST_OF_SHORT
        x, segments = self._embedded(source, model.embedding, model.source_positions), Segments(source, source, short=short)
        for layer in model.encoder:
            assert isinstance(layer, EncoderLayer)
            x = self._after(layer.round_attention, x, partial(_attended, layer.self_attention, segments))
            x = self._after(layer.round_feed_forward, x, self._feed_forward(layer.feed_forward))
        memory = normed(x.residual, model.encoder_norm)
        x = self._embedded(target, model.target_embedding or model.embedding, model.target_positions)
        segments, of_source = Segments(target, target, causal=True, short=short), Segments(target, source, short=short)
        for layer in model.decoder_layers():
            encoded = KeysAndValues(*_projected(layer.cross_attention, memory, "key", "value"))
            x = self._after(layer.round_self_attention, x, partial(_attended, layer.self_attention, segments))
            x = self._after(layer.round_cross_attention, x, partial(_attended, layer.cross_attention, of_source, encoded=encoded))
            x = self._after(layer.round_feed_forward, x, self._feed_forward(layer.feed_forward))
        return normed(x.residual, model.decoder_norm)[0]

    def _embedded(self, sentences: Packed, embedding: TokenEmbedding, positions: nn.Module | None) -> _Stream:
        embedded = embedding(sentences.tokens[None])
        if positions is not None:
            embedded = embedded + functional.embedding(sentences.positions, positions(0, sentences.longest))
        x = self.model.dropout(as_autocast(embedded))
        return _Stream(x, x)

    def _after(self, around: Residual, x: _Stream, sublayer: Callable[[Tensor], Tensor]) -> _Stream:
        """Return `Residual.forward`."""
        if not self._kernels:
            after = around(x.residual, sublayer)
            return _Stream(after, after)
        from transformer_core.models.ops.layer_kernels import residual  # It needs Triton, which a CPU's torch has not.

        dropout = around.dropout.probability
        if around.norm_first:
            entering, _ = residual(x.entering, None, around.norm, 0.0)
            return _Stream(*residual(x.residual, sublayer(entering), None, dropout))
        return _Stream(*residual(x.residual, sublayer(x.entering), around.norm, dropout))

    def _feed_forward(self, network: FeedForward) -> Callable[[Tensor], Tensor]:
        if not self._kernels:
            return network
        from transformer_core.models.ops.layer_kernels import linear_relu  # It needs Triton, which a CPU's torch has not.

        return lambda x: network.outer(network.dropout(linear_relu(x, network.inner)))


class LowCopies:
    """Copies, in the low precision, of weights and biases of a model's linear maps; packed micro-batches are computed from them.

    Autocast would convert each weight and each gradient by a small kernel of its own. Here a few convert all weights, and two add up all
    gradients. `originals` are the weights and biases.
    """

    def __init__(self, packed: PackedTransformer, dtype: torch.dtype) -> None:
        linears = {name for name, module in packed.named_modules() if isinstance(module, nn.Linear)}
        named = {name: weight for name, weight in packed.named_parameters() if weight.requires_grad and name.rpartition(".")[0] in linears}
        self.originals: list[Tensor] = list(named.values())
        self._packed = packed
        self._copies = {name: torch.empty_like(weight, dtype=dtype).requires_grad_() for name, weight in named.items()}

    def decoded(self, batch: PackedBatch) -> Tensor:
        """Return the output for each target token, (n, D), computed from new copies."""
        copies = list(self._copies.values())
        with torch.no_grad():
            torch._foreach_copy_(copies, self.originals)
        for copy in copies:
            copy.grad = None  # A new gradient is then kept as it is, and not added to zeros.
        return functional_call(self._packed, self._copies, (batch,))

    def add_gradients(self, sums: Tensor) -> None:
        """Add the gradients of the last `decoded` to `sums`, which begins with those of the originals."""
        gradients = [torch.zeros_like(copy) if copy.grad is None else copy.grad for copy in self._copies.values()]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        sums[: len(together)] += together


def _attended(attention: MultiHeadAttention, segments: Segments, x: Tensor, encoded: KeysAndValues | None = None) -> Tensor:
    """Attend to what is encoded, or to x itself."""
    if encoded is None:
        key, value, query = _projected(attention, x, "key", "value", "query")
    else:
        key, value, query = *encoded, attention.queries(x)
    return attention.output(packed_attention(query, key, value, segments).transpose(1, 2).flatten(2))


def _projected(attention: MultiHeadAttention, x: Tensor, *names: str) -> list[Tensor]:
    """Apply projections to the same (1, n, D) and split their results into heads; on a GPU by one product for all."""
    projections: list[nn.Linear] = [getattr(attention, name) for name in names]
    if x.device.type == "cpu":
        return [attention.split(projection(x)) for projection in projections]
    weights = [projection.weight for projection in projections]
    parts = _Parts.apply(functional.linear(x, torch.cat(weights)), [len(weight) for weight in weights])  # type: ignore[no-untyped-call]
    return [attention.split(part) for part in parts]


class _Parts(Function):
    """Parts of the last dimension; their gradients are not copied if they lie side by side in this order, as those of `short_attention`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: list[int]) -> tuple[Tensor, ...]:  # noqa: ARG004
        return x.split(widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        first, width = parts[0], sum(part.shape[-1] for part in parts)
        shape, strides = (*first.shape[:-1], width), (*first.stride()[:-2], width, 1)
        place = first.storage_offset()
        for part in parts:
            beside = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.storage_offset() == place
            if not beside or part.stride() != strides:
                return torch.cat(parts, dim=-1), None
            place += part.shape[-1]
        return first.as_strided(shape, strides), None
