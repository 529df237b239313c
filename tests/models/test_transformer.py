"""The Transformer against the paper and against itself."""

import math

import pytest
import torch

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, scaled_dot_product_attention
from transformer_core.models.dropout import Dropout
from transformer_core.models.embeddings import SharedEmbedding, sinusoidal_positions
from transformer_core.models.layers import EncoderLayer
from transformer_core.models.size import parameters_by_part
from transformer_core.models.transformer import Transformer
from transformer_core.presets import PRESETS, TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1)
VOCAB = 23


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SIZE, VOCAB).double().eval()


def tokens(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(4, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("preset", "vocab_size", "millions"), [("base", 41_100, 65.1), ("big", 36_000, 213.15)])
def test_parameter_counts_round_to_the_papers(preset: str, vocab_size: int, millions: float) -> None:
    by_part = parameters_by_part(PRESETS[preset], vocab_size)
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in Transformer(PRESETS[preset], vocab_size).parameters())
    assert built == sum(by_part.values())
    assert built / 1e6 == pytest.approx(millions, abs=0.06)


def test_positions_are_interleaved_sines_and_cosines_of_the_papers_wavelengths() -> None:
    table = sinusoidal_positions(300, 8)
    for position in (0, 1, 299):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_positions_beyond_the_prepared_table_are_the_same_function() -> None:
    embedding = SharedEmbedding(VOCAB, 16)
    long = embedding(torch.full((1, 700), 5))
    again = SharedEmbedding(VOCAB, 16)
    again.load_state_dict(embedding.state_dict())
    assert torch.equal(long[:, 650:652], again(torch.full((1, 2), 5), first_position=650))


def test_one_matrix_serves_source_target_and_projection() -> None:
    model = Transformer(SIZE, VOCAB)
    shaped = [name for name, parameter in model.named_parameters() if VOCAB in parameter.shape]
    assert shaped == ["embedding.weight"]
    torch.manual_seed(0)
    assert SharedEmbedding(8000, 256).weight.std().item() == pytest.approx(256**-0.5, rel=0.01)


def test_attention_of_one_query_is_the_formula_by_hand() -> None:
    query, key, value = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]]), torch.tensor([[[[10.0], [20.0]]]])
    weights = [math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))]
    expected = (10 * weights[0] + 20 * weights[1]) / sum(weights)
    assert scaled_dot_product_attention(query, key, value, None, Dropout(0.0)).item() == pytest.approx(expected, rel=1e-6)


def test_fused_and_plain_attention_agree() -> None:
    torch.manual_seed(2)
    layer = MultiHeadAttention(SIZE).double()
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    mask = torch.rand(3, 1, 1, 7) > 0.3
    mask[..., 0] = True
    plain = layer(x, layer.keys_and_values(x), mask)
    with torch.no_grad():
        assert torch.allclose(plain, layer(x, layer.keys_and_values(x), mask), atol=1e-12)


def test_a_future_target_token_changes_no_earlier_output(model: Transformer) -> None:
    source, target = tokens(2, 5), tokens(2, 6)
    changed = target.clone()
    changed[:, 4] = 3
    mask = torch.ones_like(source, dtype=torch.bool)
    before, after = model(source, mask, target), model(source, mask, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_padding_changes_no_output(model: Transformer) -> None:
    source, target = tokens(1, 5), tokens(1, 6)
    padded = torch.cat((source, torch.zeros(1, 4, dtype=torch.long)), dim=1)
    plain = model(source, source > 0, target)
    assert torch.allclose(plain, model(padded, padded > 0, target), atol=1e-12)


def test_decoding_a_step_at_a_time_gives_the_logits_of_the_whole_target(model: Transformer) -> None:
    source, target = tokens(3, 5), tokens(3, 7)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[0, 3:] = False
    with torch.no_grad():
        whole = model.embedding.project(model(source, mask, target))
        state = model.start(source, mask)
        steps = [model.step(target[:, position], state) for position in range(7)]
    assert torch.allclose(torch.stack(steps, dim=1), whole, atol=1e-12)


def test_beams_of_a_sentence_share_its_source(model: Transformer) -> None:
    source = tokens(2, 5)
    mask = torch.ones_like(source, dtype=torch.bool)
    first = tokens(6, 1)[:, 0]
    with torch.no_grad():
        beams = model.step(first, model.start(source, mask))
        rows = model.step(first, model.start(source.repeat_interleave(3, dim=0), mask.repeat_interleave(3, dim=0)))
    assert torch.allclose(beams, rows, atol=1e-12)


def test_post_norm_output_of_each_stack_is_normalised_and_nothing_follows(model: Transformer) -> None:
    source = tokens(2, 5)
    encoded = model.encode(source, torch.ones_like(source, dtype=torch.bool))
    # A fresh layer norm has gain 1 and bias 0, so its output has mean 0 and variance 1 over D (up to its epsilon of 1e-5).
    assert torch.allclose(encoded.mean(dim=-1), torch.zeros(2, 5, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(encoded.var(dim=-1, unbiased=False), torch.ones(2, 5, dtype=torch.float64), atol=1e-3)


def test_d_k_and_d_v_are_free_of_d_model() -> None:
    layer = MultiHeadAttention(SIZE)
    memory = layer.keys_and_values(torch.zeros(2, 3, 16))
    assert isinstance(memory, KeysAndValues)
    assert memory.key.shape == (2, 4, 3, 6)
    assert memory.value.shape == (2, 4, 3, 5)


def test_attention_and_relu_dropout_exist_and_are_off_in_the_papers_models() -> None:
    assert PRESETS["base"].attention_dropout == PRESETS["base"].relu_dropout == 0
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    mask = torch.ones(2, 5, dtype=torch.bool)[:, None, None]
    for site in ("attention_dropout", "relu_dropout"):
        layer = EncoderLayer(TransformerSize(**{**SIZE.__dict__, "dropout": 0.0, site: 0.5}))
        assert not torch.equal(layer(x, mask), layer(x, mask))
        assert torch.equal(layer.eval()(x, mask), layer(x, mask))


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(3)
    dropped = Dropout(0.3)(torch.ones(1000, 1001))
    # A million draws: the share's standard deviation is sqrt(0.3 * 0.7 / 1e6) = 0.0005; five of them.
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.0025)
    assert dropped.double().mean().item() == pytest.approx(1.0, abs=0.005)


def test_dropout_is_the_same_for_the_same_seed_and_absent_outside_training() -> None:
    x, layer = torch.ones(64, 33), Dropout(0.5)
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
