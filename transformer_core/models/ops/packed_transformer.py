"""The Transformer over sentences without padding: another forward pass over the weights of the model, with the same results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
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

    @classmethod
    def of(cls, x: Tensor) -> "_Stream":
        return cls(x, x)


class PackedTransformer(nn.Module):
    """A Transformer in training, over packed batches.

    Args:
        model: the model, which keeps its weights.
        kernels: whether to use the Triton kernels of this package.
    """

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
            x = self._after(layer.round_attention, x, _self_attention(layer.self_attention, segments))
            x = self._after(layer.round_feed_forward, x, self._feed_forward(layer.feed_forward))
        memory = normed(x.residual, model.encoder_norm)
        x = self._embedded(target, model.target_embedding or model.embedding, model.target_positions)
        segments, of_source = Segments(target, target, causal=True, short=short), Segments(target, source, short=short)
        for layer in model.decoder_layers():
            encoded = KeysAndValues(*_projected(layer.cross_attention, memory, "key", "value"))
            x = self._after(layer.round_self_attention, x, _self_attention(layer.self_attention, segments))
            x = self._after(layer.round_cross_attention, x, _cross_attention(layer.cross_attention, encoded, of_source))
            x = self._after(layer.round_feed_forward, x, self._feed_forward(layer.feed_forward))
        return normed(x.residual, model.decoder_norm)[0]

    def _embedded(self, sentences: Packed, embedding: TokenEmbedding, positions: nn.Module | None) -> _Stream:
        embedded = embedding(sentences.tokens[None])
        if positions is not None:
            embedded = embedded + functional.embedding(sentences.positions, positions(0, sentences.longest))
        return _Stream.of(self.model.dropout(as_autocast(embedded)))

    def _after(self, around: Residual, x: _Stream, sublayer: Callable[[Tensor], Tensor]) -> _Stream:
        """Return `Residual.forward`."""
        if not self._kernels:
            return _Stream.of(around(x.residual, sublayer))
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


def _self_attention(attention: MultiHeadAttention, segments: Segments) -> Callable[[Tensor], Tensor]:
    def attend(x: Tensor) -> Tensor:
        key, value, query = _projected(attention, x, "key", "value", "query")
        return _attended(attention, query, KeysAndValues(key, value), segments)

    return attend


def _cross_attention(attention: MultiHeadAttention, encoded: KeysAndValues, segments: Segments) -> Callable[[Tensor], Tensor]:
    return lambda x: _attended(attention, attention.queries(x), encoded, segments)


def _attended(attention: MultiHeadAttention, query: Tensor, memory: KeysAndValues, segments: Segments) -> Tensor:
    attended = packed_attention(query, memory.key, memory.value, segments)
    output: Tensor = attention.output(attended.transpose(1, 2).flatten(2))
    return output


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
