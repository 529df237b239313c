"""The Transformer with one of its parts changed or left out, to measure what the part does: for experiments alone.

No export, packed batch or picture of attention supports these models.
"""

import torch
from torch import Tensor, nn

from transformer_core.baselines.sizes import AblationSize
from transformer_core.models.attention import MultiHeadAttention, bias_of
from transformer_core.models.embeddings import Dropout
from transformer_core.models.layers import DecoderLayer, EncoderLayer, Residual, Sublayer, normed
from transformer_core.models.transformer import Transformer


class UnscaledAttention(nn.Module):
    """softmax(Q K^T) V: dot-product attention without the factor 1 / sqrt(d_k) (paper 3.2.1)."""

    def energies(self, query: Tensor, key: Tensor) -> Tensor:
        """Return what the softmax is taken of, (B, H, T, S)."""
        return query @ key.transpose(-2, -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
        """Attend as `scaled_dot_product_attention` with other energies, in float32 at least."""
        exact = torch.promote_types(query.dtype, torch.float32)
        with torch.autocast(query.device.type, enabled=False):
            energies = self.energies(query.to(exact), key.to(exact))
            weights = (energies if mask is None else energies + bias_of(mask, exact)).softmax(dim=-1)
            return (dropout(weights) @ value.to(exact)).to(query.dtype)


class AdditiveAttention(UnscaledAttention):
    """Attention whose energies are v . tanh(q + k), with a vector v for each head (paper 3.2.1; Bahdanau et al. 2015, A.1.2)."""

    def __init__(self, size: AblationSize) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(size.heads, size.d_k).normal_(std=size.d_k**-0.5))

    def energies(self, query: Tensor, key: Tensor) -> Tensor:
        """Return what the softmax is taken of, (B, H, T, S)."""
        return torch.einsum("bhtsd,hd->bhts", torch.tanh(query[:, :, :, None] + key[:, :, None]), self.vectors.to(query.dtype))


class WithoutResidual(Residual):
    """The norm and dropout of a sub-layer without the sum with its input (paper 3.1)."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Apply a sub-layer to x, (B, T, D), and return that shape."""
        if self.norm_first:
            return self.dropout(sublayer(normed(x, self.norm)))
        return normed(self.dropout(sublayer(x)), self.norm)


class Ablation(Transformer):
    """A Transformer with the changes of `AblationSize`."""

    def __init__(self, size: AblationSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        for module in list(self.modules()):
            if isinstance(module, MultiHeadAttention) and size.energies != "scaled":
                module.attend = UnscaledAttention() if size.energies == "dot" else AdditiveAttention(size)
            if isinstance(module, EncoderLayer | DecoderLayer) and not size.residual:
                for name in [name for name, part in module.named_children() if isinstance(part, Residual)]:
                    setattr(module, name, WithoutResidual(size))
