"""Properties that training and decoding rely on, of every architecture and variant."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_core.baselines.sizes import AblationSize, ByteNetSize, ConvolutionalSize, RecurrentSize
from transformer_core.models.architectures import build
from transformer_core.models.precision import choose_kernels
from transformer_core.models.translation import TranslationModel
from transformer_core.parsing.sizes import ParserSize
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize
from transformer_core.training.loss import cross_entropy

VOCAB = 23
PAPER = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1)
RECURRENT = RecurrentSize(layers=2, d_model=16, dropout=0.1)
LUONG = replace(RECURRENT, decoder="luong", attention="dot", bidirectional=False)
ABLATION = AblationSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1)
CONVOLUTIONAL = ConvolutionalSize(layers=3, d_model=16, dropout=0.1)
SIZES: dict[str, ModelSize] = {
    "transformer": PAPER,
    "pre-norm": replace(PAPER, norm="pre"),
    "learned positions": replace(PAPER, positions="learned", most_positions=40),
    "no positions": replace(PAPER, positions="none"),
    "decoder-only tying": replace(PAPER, tied="decoder"),
    "unequal depths": replace(PAPER, encoder_layers=3, decoder_layers=1),
    "no tying": replace(PAPER, tied="none"),
    "lstm without attention": replace(RECURRENT, attention="none"),
    "lstm, additive": RECURRENT,
    "gru, dot": replace(RECURRENT, layers=1, cell="gru", attention="dot"),
    "lstm, one direction, reversed": replace(RECURRENT, attention="none", bidirectional=False, reverse_source=True),
    "lstm, additive, reversed": replace(RECURRENT, layers=1, reverse_source=True),
    "cho": replace(RECURRENT, decoder="cho", cell="gru", attention="none", bidirectional=False),
    "bahdanau": replace(RECURRENT, decoder="bahdanau", cell="gru"),
    "luong": LUONG,
    "luong, reversed": replace(LUONG, layers=1, reverse_source=True),
    "convolutional": CONVOLUTIONAL,
    "convolutional, kernel 1": replace(CONVOLUTIONAL, layers=2, kernel=1),
    "convolutional, of several widths": replace(CONVOLUTIONAL, layers=4, convolutions=((12, 3, 2), (20, 5, 1), (24, 1, 1))),
    "bytenet": ByteNetSize(layers=6, d_model=16, dropout=0.1),
    "bytenet, kernel 1": ByteNetSize(layers=1, d_model=16, dropout=0.1, kernel=1),
    "attention without scale": replace(ABLATION, energies="dot"),
    "additive attention": replace(ABLATION, energies="additive"),
    "without residuals": replace(ABLATION, residual=False),
    "without residuals, pre-norm": replace(ABLATION, residual=False, norm="pre"),
    "parser": ParserSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1),
}


def built(size: ModelSize) -> Any:
    torch.manual_seed(0)
    model = build(size, VOCAB)
    symbols = {5: "(S", 6: "XX", 8: ")S", 9: "XX-NN", 11: "(NP", 14: ")NP", 15: "XX"}
    model.read_vocabulary(["in" if token % 3 == 1 else f"\u2581{symbols.get(token, 'begin')}" for token in range(VOCAB)])
    return model.double().eval()


@pytest.fixture(params=SIZES.values(), ids=list(SIZES))
def model(request: pytest.FixtureRequest) -> TranslationModel:
    return built(request.param)


def tokens(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randint(4, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(seed))


def test_a_row_twice_in_a_batch_is_dropped_out_differently(model: TranslationModel) -> None:
    """R-Drop needs it of every architecture."""
    source, target = tokens(2, 5).repeat(2, 1), tokens(2, 7).repeat(2, 1)
    first, second = model(source, source > 0, target).chunk(2)
    assert torch.allclose(first, second, rtol=0, atol=1e-12)
    first, second = model.train()(source, source > 0, target).chunk(2)
    assert bool((first != second).any(dim=-1).all())


def test_a_future_target_token_changes_no_earlier_output(model: TranslationModel) -> None:
    source, target = tokens(2, 5), tokens(2, 7)
    for place in range(7):
        changed = target.clone()
        changed[:, place] = 3
        before, after = model(source, source > 0, target), model(source, source > 0, changed)
        assert torch.allclose(before[:, :place], after[:, :place], rtol=0, atol=1e-12)
        assert not torch.equal(before[:, place:], after[:, place:])


def test_padding_and_batch_mates_change_no_output(model: TranslationModel) -> None:
    source, target = tokens(1, 5), tokens(1, 6)
    alone = model(source, source > 0, target)
    padded = torch.cat((source, torch.zeros(1, 4, dtype=torch.long)), dim=1)
    together = torch.cat((tokens(1, 9, seed=2), padded))
    out = model(together, together > 0, torch.cat((tokens(1, 6, seed=3), target)))
    assert torch.allclose(alone, out[1:], rtol=0, atol=1e-12)


def test_decoding_a_step_at_a_time_gives_the_logits_of_the_whole_target(model: TranslationModel) -> None:
    source, target = tokens(3, 5), tokens(3, 7)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[0, 3:] = False
    with torch.no_grad():
        whole = model.project(model(source, mask, target))
        state = model.start(source, mask)
        steps = [model.step(target[:, position], state) for position in range(7)]
    assert torch.allclose(torch.stack(steps, dim=1), whole, rtol=0, atol=1e-12)


def test_beams_of_a_sentence_share_its_source_and_can_be_reordered(model: TranslationModel) -> None:
    source, target = tokens(2, 5), tokens(6, 3)
    target[:, 0] = target[[0, 0, 0, 3, 3, 3], 0]
    order, kept = torch.tensor([5, 3, 3]), torch.tensor([1])
    with torch.no_grad():
        state = model.start(source, source > 0)
        model.step(target[[0, 3], 0], state)
        state.select(torch.tensor([0, 0, 0, 1, 1, 1]), None)
        model.step(target[:, 1], state)
        state.select(order, kept)
        beams = model.step(target[order, 2], state)
        alone = source[kept].expand(3, -1)
        whole = model.project(model(alone, alone > 0, target[order]))[:, 2]
    assert torch.allclose(beams, whole, rtol=0, atol=1e-12)


def test_every_parameter_learns(model: TranslationModel) -> None:
    source, target = tokens(3, 5), tokens(3, 7)
    model(source, source > 0, target).square().sum().backward()
    model.project(model(source, source > 0, target)).logsumexp(-1).sum().backward()
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    assert not idle


def test_without_attention_the_source_reaches_a_recurrent_decoder_by_its_last_states_alone() -> None:
    model, source = built(RecurrentSize(layers=1, d_model=16, dropout=0.0, attention="none")), tokens(1, 5)
    with torch.no_grad():
        changed, plain = (model.start(source, source > 0) for _ in range(2))
        changed.memory += 1.0
        changed.keys += 1.0
        assert torch.equal(model.step(tokens(1, 1)[0], changed), model.step(tokens(1, 1)[0], plain))


def computed(model: TranslationModel, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Logits, loss and gradients, on the CPU in float64."""
    device = model.device
    source, target = tokens(5, 9).to(device), tokens(5, 8, seed=2).to(device)
    source[1, 4:] = source[3, 7:] = 0
    model.zero_grad()
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        decoded = model(source, source != 0, target)
        logits = model.project(decoded)
        loss = cross_entropy(decoded.flatten(0, 1), model.output_weight, target.flatten(), 0.1)
    loss.objective.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return [part.detach().double().cpu() for part in (logits, loss.objective, gradients)]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 2e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_logits_loss_and_gradients_are_those_of_a_cpu(size: ModelSize, dtype: torch.dtype | None, tolerance: float) -> None:
    choose_kernels(torch.device("cuda"))
    still = replace(size, dropout=0.0)
    expected = computed(built(still).float().train())
    for want, ours in zip(expected, computed(built(still).float().train().cuda(), dtype), strict=True):
        assert ours.isfinite().all()
        assert (ours - want).norm() <= tolerance * want.norm()
