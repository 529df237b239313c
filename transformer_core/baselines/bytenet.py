"""ByteNet (Kalchbrenner et al. 2016): dilated convolutions, the decoder on top of the encoder's outputs, no attention.

Differences from that paper: subwords instead of characters; source, target and projection share one embedding; the encoder's output and the
decoder's are normalised, and the first is added to the target's embedding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.baselines.sizes import ByteNetSize
from transformer_core.models.embeddings import Dropout
from transformer_core.models.layers import normed
from transformer_core.models.translation import TranslationModel, as_autocast

_DILATIONS = 5  # 1, 2, 4, 8, 16 in successive blocks, again and again.


@dataclass
class ByteNetState:
    """State of decoding of B sentences with K hypotheses each."""

    encoded: Tensor  # (B, L, D), the encoder's outputs.
    past: list[Tensor]  # The last (kernel - 1) * dilation inputs of each block's convolution, (B*K, ..., D/2); empty before the first step.
    position: int = 0  # Number of target positions decoded so far.

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.past = [block.index_select(0, hypotheses) for block in self.past]
        if sentences is not None:
            self.encoded = self.encoded.index_select(0, sentences)


class ResidualBlock(nn.Module):
    """A dilated convolution of half the width between two linear maps, each after a norm and ReLU, and a residual (Figure 3, left)."""

    def __init__(self, size: ByteNetSize, dilation: int) -> None:
        super().__init__()
        inner = size.d_model // 2
        self.dilation, self.before = dilation, (size.kernel - 1) * dilation
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in (size.d_model, inner, inner))
        self.narrowed, self.widened = nn.Linear(size.d_model, inner), nn.Linear(inner, size.d_model)
        self.convolution = nn.Linear(size.kernel * inner, inner)
        self.dropout = Dropout(size.dropout)
        for linear in (self.narrowed, self.convolution, self.widened):
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)

    def read(self, x: Tensor) -> Tensor:
        """Return the inputs of the convolution, (B, T, D/2), for x, (B, T, D)."""
        return self._active(self.narrowed(self._active(x, 0)), 1)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """Return (B, T, D), given x of that shape and the inputs of the convolution, (B, T + (kernel - 1) * dilation, D/2)."""
        windows = read.unfold(1, self.before + 1, 1)[..., :: self.dilation].flatten(2)
        return x + self.dropout(self.widened(self._active(self.convolution(windows), 2)))

    def _active(self, x: Tensor, norm: int) -> Tensor:
        return functional.relu(as_autocast(self.norms[norm](x)))


class ByteNet(TranslationModel):
    """Encoder and decoder over one shared embedding, which is also the projection."""

    def __init__(self, size: ByteNetSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.size = size
        self.encoder, self.decoder = (
            nn.ModuleList(ResidualBlock(size, 2 ** (layer % _DILATIONS)) for layer in range(size.layers)) for _ in range(2)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(size.d_model), nn.LayerNorm(size.d_model)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        return self._decode(target, self.start(source, source_mask))

    def start(self, source: Tensor, source_mask: Tensor) -> ByteNetState:
        # A representation of 1.2 |s| positions: a bound of the target's length, as for English to German (3.2).
        lengths = (6 * source_mask.sum(dim=1, keepdim=True) + 4) // 5
        mask = (torch.arange(int(lengths.max()), device=source.device) < lengths)[:, :, None]
        embedded = self._embed(source) * source_mask[:, :, None]
        x = functional.pad(embedded, (0, 0, 0, mask.shape[1] - source.shape[1]))
        for block in _blocks(self.encoder):
            x = block(x, functional.pad(block.read(x) * mask, (0, 0, block.before // 2, block.before // 2)))
        return ByteNetState(normed(x, self.encoder_norm) * mask, [])

    def decode(self, tokens: Tensor, state: ByteNetState) -> Tensor:
        return self._decode(tokens[:, None], state)[:, 0]

    def _decode(self, target: Tensor, state: ByteNetState) -> Tensor:
        """Decode (B*K, T) next target tokens to (B*K, T, D) and advance the state."""
        first, end = state.position, state.position + target.shape[1]
        # Beyond its end the representation is zero (3.2).
        encoded = functional.pad(state.encoded, (0, 0, 0, max(end - state.encoded.shape[1], 0)))[:, first:end]
        x = self._embed(target) + encoded.repeat_interleave(len(target) // len(encoded), dim=0)
        past = state.past or [x.new_zeros(len(x), block.before, self.d_model // 2) for block in _blocks(self.decoder)]
        state.past, state.position = [], end
        for block, before in zip(_blocks(self.decoder), past, strict=True):
            read = torch.cat((before, block.read(x)), dim=1)
            x = block(x, read)
            state.past.append(read[:, read.shape[1] - block.before :])
        return self.dropout(normed(x, self.decoder_norm))

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(as_autocast(self.embedding(tokens)))


def _blocks(stack: nn.ModuleList) -> list[ResidualBlock]:
    return [block for block in stack if isinstance(block, ResidualBlock)]
