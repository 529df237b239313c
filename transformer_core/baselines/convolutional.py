"""The convolutional encoder-decoder (ConvS2S, Gehring et al. 2017): gated convolutions, attention in each decoder layer.

Differences from that paper: positions are sinusoidal, for any length; source, target and projection share one embedding, which the
projection does not normalise; there are no linear maps between equal widths.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from transformer_core.baselines.sizes import ConvolutionalSize
from transformer_core.models.embeddings import Dropout, SinusoidalPositions
from transformer_core.models.translation import TranslationModel, as_autocast

_HALF = math.sqrt(0.5)  # Halves the variance of a sum of two (Gehring et al. 2017, 3.5).
_EMBEDDED = 0.1  # Initial standard deviation of embeddings (3.5); with 1, attention's unscaled energies would saturate its softmax.


@dataclass
class ConvolutionalState:
    """State of decoding of B sentences with K hypotheses each."""

    keys: Tensor  # (B, S, D), the encoder's outputs.
    values: Tensor  # (B, S, D), the sum of keys and source embeddings times sqrt(0.5).
    mask: Tensor  # (B, S), True at real source tokens.
    past: list[Tensor]  # The last kernel - 1 inputs of each layer, (B*K, kernel - 1, channels of the input); empty before the first step.
    position: int = 0  # Number of target positions decoded so far.

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.past = [layer.index_select(0, hypotheses) for layer in self.past]
        if sentences is not None:
            self.keys, self.values = self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
            self.mask = self.mask.index_select(0, sentences)


def _normalised(inputs: int, outputs: int, gain: float = 1.0) -> nn.Module:
    """Return a linear map with weight normalisation (3.5), initialised to multiply the variance by `gain`."""
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=math.sqrt(gain / inputs))
    nn.init.zeros_(linear.bias)
    return weight_norm(linear, dim=0)


def _projection(inputs: int, outputs: int) -> nn.Module:
    """Return a linear map between two widths; the identity if they are equal."""
    return nn.Identity() if inputs == outputs else _normalised(inputs, outputs)


class GatedConvolution(nn.Module):
    """GLU of a convolution over `kernel` positions (3.2), with weight normalisation (3.5)."""

    def __init__(self, inputs: int, channels: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        # A gate of about one half leaves a quarter of the variance, so the initial weights multiply it by four.
        self.linear = _normalised(kernel * inputs, 2 * channels, 4 * (1 - dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T + kernel - 1, inputs) to (B, T, channels)."""
        windows = x.unfold(1, self.kernel, 1).flatten(2)
        return functional.glu(self.linear(windows), dim=-1)


class EncoderLayer(nn.Module):
    """A gated convolution centred on each position, and a residual."""

    def __init__(self, inputs: int, channels: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = GatedConvolution(inputs, channels, kernel, dropout)
        self.residual = _projection(inputs, channels)
        self._side = kernel // 2

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (B, S, inputs) to (B, S, channels); padding (False in the mask, (B, S, 1)) and positions beyond the ends are read as zero."""
        read = functional.pad(self.dropout(x) * mask, (0, 0, self._side, self._side))
        return (self.convolution(read) + self.residual(x)) * _HALF


class Attention(nn.Module):
    """Attention from the decoder to the source (3.3)."""

    def __init__(self, channels: int, d_model: int) -> None:
        super().__init__()
        self.query = _normalised(channels, d_model)
        self.context = _normalised(d_model, channels)

    def forward(self, x: Tensor, embedded: Tensor, state: ConvolutionalState) -> Tensor:
        """Return weighted sums of values, scaled by sqrt(source length) to restore the variance lost in averaging (3.5).

        Args:
            x: (B*K, T, channels), as what is returned.
            embedded: (B*K, T, D), embeddings of the target tokens, part of the query.
            state: keys, values and mask of the source.
        """
        query = (self.query(x) + embedded) * _HALF
        grouped = query.reshape(len(state.keys), -1, query.shape[-1])
        energies = (grouped @ state.keys.transpose(1, 2)).masked_fill(~state.mask[:, None], -torch.inf)
        lengths = state.mask.sum(dim=1, keepdim=True)[:, :, None].to(query.dtype)
        return self.context(((energies.softmax(dim=-1) @ state.values) * lengths.sqrt()).reshape(query.shape))


class DecoderLayer(nn.Module):
    """A gated convolution over each position and those before it, attention to the source, and a residual."""

    def __init__(self, inputs: int, channels: int, kernel: int, d_model: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = GatedConvolution(inputs, channels, kernel, dropout)
        self.attention = Attention(channels, d_model)
        self.residual = _projection(inputs, channels)

    def forward(self, x: Tensor, past: Tensor, embedded: Tensor, state: ConvolutionalState) -> tuple[Tensor, Tensor]:
        """Apply the layer to T positions; return (B*K, T, channels), and the last kernel - 1 inputs.

        Args:
            x: (B*K, T, inputs).
            past: (B*K, kernel - 1, inputs), this layer's inputs before x, zero before the first.
            embedded: (B*K, T, D), see `Attention`.
        """
        read = torch.cat((past, self.dropout(x)), dim=1)
        convolved = self.convolution(read)
        attended = (self.attention(convolved, embedded, state) + convolved) * _HALF
        return (attended + self.residual(x)) * _HALF, read[:, read.shape[1] - past.shape[1] :]


class Convolutional(TranslationModel):
    """Encoder and decoder over one shared embedding, which is also the projection."""

    def __init__(self, size: ConvolutionalSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.size = size
        self.positions = SinusoidalPositions(size.d_model)
        outputs = [(channels, kernel) for channels, kernel, count in size.groups for _ in range(count)]
        layers = [(before, *output) for (before, _), output in zip(outputs[:1] + outputs[:-1], outputs, strict=True)]
        self._layers = layers  # Inputs, channels and kernel of each.
        first, last = outputs[0][0], outputs[-1][0]
        self.encoder_input = _projection(size.d_model, first)
        self.encoder = nn.ModuleList(EncoderLayer(*layer, size.dropout) for layer in layers)
        self.encoder_output = _projection(last, size.d_model)
        self.decoder_input = _projection(size.d_model, first)
        self.decoder = nn.ModuleList(DecoderLayer(*layer, size.d_model, size.dropout) for layer in layers)
        self.last = _normalised(last, size.d_model)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        return self._decode(target, self.start(source, source_mask))

    def start(self, source: Tensor, source_mask: Tensor) -> ConvolutionalState:
        embedded = self._embed(source, 0)
        mask = source_mask[:, :, None]
        x = self.encoder_input(embedded)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.encoder_output(x)
        # The encoder gets gradients from the attention of every decoder layer, so these are scaled down: 1/L in 3.5, half of it in fairseq.
        share = 1 / (2 * len(self._layers))
        keys = x * share + x.detach() * (1 - share)
        return ConvolutionalState(keys, (keys + embedded) * _HALF, source_mask, [])

    def decode(self, tokens: Tensor, state: ConvolutionalState) -> Tensor:
        return self._decode(tokens[:, None], state)[:, 0]

    def _decode(self, target: Tensor, state: ConvolutionalState) -> Tensor:
        """Decode (B*K, T) next target tokens to (B*K, T, D) and advance the state."""
        embedded = self._embed(target, state.position)
        x = self.decoder_input(embedded)
        past = state.past or [x.new_zeros(len(x), kernel - 1, inputs) for inputs, _, kernel in self._layers]
        state.past = []
        for layer, before in zip(self.decoder, past, strict=True):
            x, read = layer(x, before, embedded, state)
            state.past.append(read)
        state.position += target.shape[1]
        return self.dropout(self.last(x))

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        x = (self.embedding(tokens) + self.positions(first, tokens.shape[1])) * _EMBEDDED
        return self.dropout(as_autocast(x))
