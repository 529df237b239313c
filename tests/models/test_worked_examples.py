"""Small examples of the paper's arguments, each computed by hand and by the project's own layers. The section is named by each test."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from transformer_core.models.attention import MultiHeadAttention, attention_weights
from transformer_core.models.embeddings import sinusoidal_positions
from transformer_core.models.layers import FeedForward
from transformer_core.presets import BASE, TransformerSize
from transformer_core.training.loss import cross_entropy

SMALL = TransformerSize(layers=1, d_model=8, d_ff=20, heads=2, d_k=4, d_v=4, dropout=0.0)


@pytest.mark.parametrize("d_k", [1, 4, 5])
def test_3_2_1_footnote_4_q_k_has_the_variance_d_k_and_scaled_scores_have_1(d_k: int) -> None:
    # Components of +1 or -1 have mean 0 and variance 1; all 2^d_k queries and keys are the whole distribution.
    vectors = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d_k)), dtype=torch.float64)
    assert (vectors @ vectors.T).var(unbiased=False).item() == pytest.approx(d_k, abs=1e-12)
    # Scores are read off the weights: a key of zeros has score 0, and weights are as exp(score).
    keys = torch.cat((torch.zeros(1, d_k, dtype=torch.float64), vectors))
    logarithms = attention_weights(vectors[None, None], keys[None, None], None)[0, 0].log()
    scores = logarithms[:, 1:] - logarithms[:, :1]
    assert scores.var(unbiased=False).item() == pytest.approx(1.0, abs=1e-12)


def test_3_2_2_any_number_of_heads_costs_as_much_as_one_of_full_width() -> None:
    n, d = 10, BASE.d_model
    # Four projections, scores, weighted sums: two operations a multiplication.
    by_hand = 4 * (2 * n * d * d) + 2 * (2 * n * n * d)
    for heads in (1, 8, 32):
        layer = MultiHeadAttention(replace(BASE, heads=heads, d_k=d // heads, d_v=d // heads))
        assert sum(parameter.numel() for parameter in layer.parameters()) == 4 * d * d
        x = torch.zeros(1, n, d)
        with FlopCounterMode(display=False) as counted:
            layer(layer.queries(x), layer.keys_and_values(x), None)
        assert counted.get_total_flops() == by_hand


def test_3_3_the_feed_forward_network_is_two_convolutions_of_kernel_size_1() -> None:
    torch.manual_seed(1)
    network = FeedForward(SMALL).double()
    inner, outer = nn.Conv1d(8, 20, kernel_size=1).double(), nn.Conv1d(20, 8, kernel_size=1).double()
    with torch.no_grad():
        for linear, convolution in ((network.inner, inner), (network.outer, outer)):
            linear.bias.normal_()
            convolution.weight.copy_(linear.weight[:, :, None])
            convolution.bias.copy_(linear.bias)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.allclose(network(x), outer(functional.relu(inner(x.mT))).mT, atol=1e-12)


def test_3_5_the_first_two_positions_of_width_4() -> None:
    # Angles 0 and 0, then 1 and 1 / 10000^(2/4) = 0.01.
    expected = [[0.0, 1.0, 0.0, 1.0], [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004]]
    assert sinusoidal_positions(2, 4).tolist() == [pytest.approx(row, abs=1e-7) for row in expected]


def test_5_4_label_smoothing_prefers_a_model_of_worse_perplexity() -> None:
    # 11 classes, eps = 0.1: the smoothed targets are 0.9 for the target and 0.01 for each other class.
    target, weight = torch.tensor([0]), torch.eye(11, dtype=torch.float64)

    def loss(certainty: float) -> tuple[float, float, float]:
        """Smoothed loss, perplexity, and largest gradient of a model that is this certain of the target."""
        logits = torch.tensor([[certainty, *[(1 - certainty) / 10] * 10]], dtype=torch.float64).log().requires_grad_()
        found = cross_entropy(logits, weight, target, label_smoothing=0.1)
        (gradient,) = torch.autograd.grad(found.objective, logits)
        return found.smoothed.item(), math.exp(found.nll.item()), gradient.abs().max().item()

    at_the_targets, sure = loss(0.9), loss(0.999)
    assert at_the_targets[1:] == pytest.approx((1 / 0.9, 0.0), abs=1e-6)
    assert at_the_targets[0] < sure[0]
    assert at_the_targets[1] > sure[1] == pytest.approx(1 / 0.999, rel=1e-6)
