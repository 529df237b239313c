"""The paper, claim by claim ("Attention Is All You Need", 2017). The section or table is named by each test."""

import copy
import itertools
import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.models.test_architectures import VOCAB
from transformer_core.models.architectures import parameters_by_part
from transformer_core.models.attention import MultiHeadAttention, attention_weights
from transformer_core.models.embeddings import Dropout, TokenEmbedding, sinusoidal_positions
from transformer_core.models.layers import DecoderLayer, FeedForward
from transformer_core.models.transformer import Transformer
from transformer_core.presets import BASE, BIG, TABLE_3, TransformerSize
from transformer_core.training.loss import cross_entropy
from transformer_core.training.update import learning_rate

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1)
SMALL = TransformerSize(layers=1, d_model=8, d_ff=20, heads=2, d_k=4, d_v=4, dropout=0.0)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SIZE, VOCAB).double().eval()


def millions(size: TransformerSize, vocab_size: int) -> float:
    return sum(parameters_by_part(size, vocab_size).values()) / 1e6


@pytest.mark.parametrize(
    ("size", "update", "rate"),
    # By hand: 512^-0.5 * 4000^-1.5, the peak 512^-0.5 * 4000^-0.5, and 512^-0.5 * 100000^-0.5; the peak 1024^-0.5 * 4000^-0.5.
    [(BASE, 1, 1.746928e-07), (BASE, 4_000, 6.987712e-04), (BASE, 100_000, 1.397542e-04), (BIG, 4_000, 4.941059e-04)],
)
def test_5_3_the_learning_rate_rises_to_the_warmup_and_falls_with_the_square_root(size: TransformerSize, update: int, rate: float) -> None:
    assert learning_rate(update, size.d_model, 4_000, 1.0) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_3_5_a_shift_by_a_fixed_offset_is_one_linear_map_for_all_positions(offset: int) -> None:
    table = sinusoidal_positions(500, 16).double()
    angles = offset / 10000 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    # Each pair (sin a, cos a) turns by the offset's angle b: sin(a+b) = sin a cos b + cos a sin b, cos(a+b) = cos a cos b - sin a sin b.
    rotation = torch.block_diag(*(torch.tensor([[b.cos(), b.sin()], [-b.sin(), b.cos()]]) for b in angles))
    # The table is float32, whose angles up to 500 are off by 500 * 2^-24 = 3e-5 at most.
    assert torch.allclose(table[:-offset] @ rotation.T, table[offset:], atol=1e-4)


def test_3_4_embeddings_have_a_deviation_of_one_over_the_root_of_d_model_and_are_scaled_at_the_input_alone() -> None:
    torch.manual_seed(0)
    embedding = TokenEmbedding(8_000, 256)
    # Two million draws: the deviation is known to 1 / sqrt(2 * 2e6) = 0.05%.
    assert embedding.weight.std().item() == pytest.approx(256**-0.5, rel=0.003)
    ids = torch.tensor([[3, 5]])
    assert torch.allclose(embedding(ids), 16 * embedding.weight[ids])
    model = Transformer(SIZE, VOCAB)
    x = torch.randn(2, 16)
    assert torch.equal(model.project(x), x @ model.embedding.weight.T)


def test_3_4_one_tensor_stands_behind_three_names(model: Transformer) -> None:
    assert [name for name, parameter in model.named_parameters() if VOCAB in parameter.shape] == ["embedding.weight"]
    assert model.output_weight is model.embedding.weight
    source, target = torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8]])
    before = model(source, source > 0, target)
    for read in (source, target):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.embedding.weight[read[0, 0]] += 1.0
        assert not torch.allclose(before, changed(source, source > 0, target))


def test_3_1_every_sub_layer_is_normalised_after_its_residual_and_no_norm_follows_the_stacks(model: Transformer) -> None:
    torch.manual_seed(1)
    layer = model.encoder[0]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    attended = layer.round_attention.norm(x + layer.self_attention(*layer.self_attention.project(x), None))
    expected = layer.round_feed_forward.norm(attended + layer.feed_forward(attended))
    assert torch.allclose(layer(x, None), expected, atol=1e-12)
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3
    assert all(".round_" in name for name in norms)


def test_3_2_1_attention_of_one_query_is_the_formula_by_hand() -> None:
    torch.manual_seed(3)
    layer = MultiHeadAttention(TransformerSize(layers=1, d_model=2, d_ff=1, heads=1, d_k=2, d_v=2, dropout=0.0))
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value, layer.output):
            linear.weight.copy_(torch.eye(2))
    x = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
    scores = [[5 / math.sqrt(2), 1 / math.sqrt(2)], [1 / math.sqrt(2), 10 / math.sqrt(2)]]
    attended = layer(layer.queries(x), layer.keys_and_values(x), None)
    for row in range(2):
        weights = [math.exp(score) for score in scores[row]]
        for column in range(2):
            expected = sum(weight * x[0, i, column].item() for i, weight in enumerate(weights)) / sum(weights)
            assert attended[0, row, column].item() == pytest.approx(expected, rel=1e-5)


def test_5_4_dropout_is_on_sub_layers_and_on_embedding_plus_position_and_nowhere_else() -> None:
    built = Transformer(BASE, VOCAB)
    sites = {name for name, module in built.named_modules() if isinstance(module, Dropout) and module.probability > 0}
    layers = [f"encoder.{n}.round_{part}.dropout" for n in range(6) for part in ("attention", "feed_forward")]
    layers += [f"decoder.{n}.round_{part}.dropout" for n in range(6) for part in ("self_attention", "cross_attention", "feed_forward")]
    assert sites == {"dropout", *layers}
    assert {module.probability for module in built.modules() if isinstance(module, Dropout)} == {0.0, 0.1}
    assert not any(isinstance(module, nn.Dropout) for module in built.modules())


def test_5_4_dropout_falls_on_the_sub_layers_output_before_it_is_added() -> None:
    torch.manual_seed(4)
    layer = DecoderLayer(replace(SIZE, dropout=0.5)).round_feed_forward
    x, y = torch.full((1, 400, 16), 10.0), torch.ones(1, 400, 16)
    layer.norm = nn.Identity()  # type: ignore[assignment]
    assert set(layer(x, lambda _: y).flatten().tolist()) == {10.0, 12.0}


def test_table_3_parameter_counts_round_to_the_papers() -> None:
    # In millions, to one place, at the vocabulary where every row rounds to the paper's figure.
    base = {"base": 65.1, "B-dk16": 58.1, "B-dk32": 60.4, "C-N2": 35.7, "C-N4": 50.4, "C-N8": 79.8, "C-dmodel256": 27.9}
    wide = {"C-dmodel1024": 168.0, "C-dff1024": 52.5, "C-dff4096": 90.3, "big": 213.1}
    for name, ours in (base | wide).items():
        row = TABLE_3[name]
        counted = millions(row.size, row.vocab_size)
        assert counted == pytest.approx(ours, abs=0.06), name
        assert round(counted) == row.millions, name


def test_table_3_each_row_changes_what_it_says() -> None:
    def changes(row: str) -> dict[str, object]:
        size = TABLE_3[row].size
        return {field.name: getattr(size, field.name) for field in fields(size) if getattr(size, field.name) != getattr(BASE, field.name)}

    assert changes("A-h1") == {"heads": 1, "d_k": 512, "d_v": 512}
    assert changes("A-h32") == {"heads": 32, "d_k": 16, "d_v": 16}
    assert changes("C-dmodel1024") == {"d_model": 1024, "d_k": 128, "d_v": 128}
    assert changes("E-learned") == {"positions": "learned"}
    assert changes("big") == {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3}
    assert TABLE_3["D-smoothing0.2"].label_smoothing == 0.2
    assert TABLE_3["big"].updates == 300_000
    assert len(TABLE_3) == 20


def test_3_2_1_without_the_scale_the_softmax_has_no_gradient_left() -> None:
    d_k = 4096
    random = torch.Generator().manual_seed(5)
    query, key = (torch.randn(1, 1, count, d_k, generator=random, dtype=torch.float64) for count in (1, 50))

    def derivative(query: Tensor) -> Tensor:
        """Of 50 weights by 50 scores: y_i (1 - y_i) on the diagonal, -y_i y_j beside it."""
        y = attention_weights(query, key, None)[0, 0, 0]
        expected = torch.diag(y) - torch.outer(y, y)
        by_query = torch.autograd.functional.jacobian(lambda q: attention_weights(q, key, None)[0, 0, 0], query)
        assert torch.allclose(by_query.reshape(50, d_k), expected @ key[0, 0] * d_k**-0.5, atol=1e-12)
        return expected

    assert derivative(query).max() > 0.05
    # A query sqrt(d_k) times as long undoes the scale: scores deviate by 64, one weight is near 1, and all derivatives are near 0.
    assert derivative(query * d_k**0.5).abs().max() < 1e-3


@pytest.mark.parametrize("d_k", [1, 4, 5])
def test_3_2_1_footnote_4_q_k_has_the_variance_d_k_and_scaled_scores_have_1(d_k: int) -> None:
    # Components of +1 or -1 have mean 0 and variance 1; all 2^d_k queries and keys are the whole distribution.
    vectors = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d_k)), dtype=torch.float64)
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
