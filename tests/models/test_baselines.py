"""The baselines beside their papers' formulas, written out; and every architecture in bf16 beside itself in float32."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transformer_core.models.architectures import build
from transformer_core.models.convolutional import Convolutional, ConvolutionalState, DecoderLayer
from transformer_core.models.recurrent import AdditiveAttention, Recurrent
from transformer_core.presets import PRESETS, ConvolutionalSize, RecurrentSize

VOCAB = 23


def tokens(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randint(4, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(seed))


def weight(layer: torch.nn.Module) -> Tensor:
    """g v / |v| of a layer with weight normalisation, a row an output."""
    parts = dict(layer.named_parameters())
    length, direction = parts["parametrizations.weight.original0"], parts["parametrizations.weight.original1"]
    return length * direction / direction.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_a_step_of_a_recurrent_decoder_reads_what_its_previous_state_attends_to(kind: str) -> None:
    torch.manual_seed(0)
    model = build(RecurrentSize(layers=1, d_model=8, dropout=0.1, attention=kind), VOCAB).double().eval()  # type: ignore[arg-type]
    assert isinstance(model, Recurrent)
    source = tokens(1, 5)
    with torch.no_grad():
        state = model.start(source, source > 0)
        memory = state.memory[0]
        ((before, cell),) = state.hidden
        energies = []
        for position in memory:
            if isinstance(model.attention, AdditiveAttention):
                inner = torch.tanh(model.attention.of_state.weight @ before[0] + model.attention.of_memory.weight @ position)
                energies.append(model.attention.energy.weight[0] @ inner)
            else:
                energies.append(before[0] @ position)
        context = torch.stack(energies).softmax(dim=0) @ memory
        read = torch.cat((model.embedding.weight[7] * math.sqrt(8), context))
        lstm = dict(model.decoder[0].named_parameters())
        gates = lstm["weight_ih"] @ read + lstm["bias_ih"] + lstm["weight_hh"] @ before[0] + lstm["bias_hh"]
        enter, forget, new, leave = gates.chunk(4)
        after = leave.sigmoid() * (forget.sigmoid() * cell[0] + enter.sigmoid() * new.tanh()).tanh()
        combined = torch.tanh(model.combine.weight @ torch.cat((after, context)) + model.combine.bias)
        assert torch.allclose(model.step(torch.tensor([7]), state)[0], model.embedding.weight @ combined, atol=1e-12)


def test_a_layer_of_the_convolutional_decoder_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    model = build(ConvolutionalSize(layers=1, d_model=6, dropout=0.1, kernel=3), VOCAB).double().eval()
    assert isinstance(model, Convolutional)
    layer = model.decoder[0]
    assert isinstance(layer, DecoderLayer)
    x, embedded = torch.randn(1, 4, 6, dtype=torch.float64), torch.randn(1, 4, 6, dtype=torch.float64)
    keys, values = torch.randn(1, 5, 6, dtype=torch.float64), torch.randn(1, 5, 6, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False, False]])
    with torch.no_grad():
        out, _ = layer(x, torch.zeros(1, 2, 6, dtype=torch.float64), embedded, ConvolutionalState(keys, values, mask, []))
        # A row of our matrix runs over the channels of one place after another: (2 D, D, kernel) for PyTorch's convolution.
        linear = layer.convolution.linear
        kernel = weight(linear).reshape(12, 6, 3)
        before_gate = functional.conv1d(functional.pad(x.transpose(1, 2), (2, 0)), kernel, linear.bias).transpose(1, 2)[0]
        convolved = before_gate[:, :6] * before_gate[:, 6:].sigmoid()
        query = (convolved @ weight(layer.attention.query).T + layer.attention.query.bias + embedded[0]) * math.sqrt(0.5)
        weights = (query @ keys[0, :3].T).softmax(dim=-1)
        context = weights @ values[0, :3] * math.sqrt(3)
        attended = (context @ weight(layer.attention.context).T + layer.attention.context.bias + convolved) * math.sqrt(0.5)
        assert torch.allclose(out[0], (attended + x[0]) * math.sqrt(0.5), atol=1e-12)


def test_the_convolutional_encoder_gets_a_share_of_its_gradient_and_values_hold_the_embeddings_too() -> None:
    torch.manual_seed(0)
    model = build(ConvolutionalSize(layers=3, d_model=6, dropout=0.1), VOCAB).double().eval()
    assert isinstance(model, Convolutional)
    outputs: list[Tensor] = []
    model.encoder[-1].register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    source = tokens(1, 5)
    state = model.start(source, source > 0)
    outputs[0].retain_grad()
    picked = torch.randn_like(state.keys)
    (state.keys * picked).sum().backward()
    assert outputs[0].grad is not None
    assert torch.allclose(outputs[0].grad, picked / (2 * 3), atol=1e-12)
    embedded = 0.1 * (model.embedding(source) + model.positions(0, 5))
    assert torch.allclose(state.keys, outputs[0], atol=1e-12)
    assert torch.allclose(state.values, (outputs[0] + embedded) * math.sqrt(0.5), atol=1e-12)


@pytest.mark.parametrize("architecture", PRESETS)
def test_bf16_gives_the_gradients_of_float32_up_to_its_rounding(architecture: str) -> None:
    torch.manual_seed(0)
    model = build(PRESETS[architecture]["tiny"], VOCAB).eval()
    source, target = tokens(8, 9), tokens(8, 7)

    def gradients(bf16: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model.project(model(source, source > 0, target))
        functional.cross_entropy(logits.float().flatten(0, 1), target.flatten()).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    exact, rounded = gradients(bf16=False), gradients(bf16=True)
    # bf16 keeps 8 bits, so a rounding is off by 2^-9 at most; some fifty on the way from the loss to a weight, at random, are 1.4%.
    assert (rounded - exact).norm() < 0.04 * exact.norm()
    assert not torch.equal(rounded, exact)
