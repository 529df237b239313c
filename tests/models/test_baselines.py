"""The baselines beside their papers' formulas, written out; and every architecture in bf16 beside itself in float32."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.models.test_architectures import ABLATION, VOCAB, built, tokens
from transformer_core import recipes
from transformer_core.baselines.convolutional import ConvolutionalState
from transformer_core.baselines.recurrent import AdditiveAttention
from transformer_core.baselines.sizes import AblationSize, ByteNetSize, ConvolutionalSize, RecurrentSize
from transformer_core.decoding import ctranslate2_export, hugging_face
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.evaluation.attention import keeps_weights
from transformer_core.models.architectures import build
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.ops.choice import prepare_for_decoding, prepare_for_training
from transformer_core.sizes import architectures


def weight(layer: torch.nn.Module) -> Tensor:
    """g v / |v| of a layer with weight normalisation, a row an output."""
    parts = dict(layer.named_parameters())
    length, direction = parts["parametrizations.weight.original0"], parts["parametrizations.weight.original1"]
    return length * direction / direction.norm(dim=1, keepdim=True)


def begun(**settings: Any) -> tuple[Any, Any, Tensor]:
    """A recurrent model of one layer, its state before it decodes, and the memory of its source, `tokens(1, 5)`."""
    model, source = built(RecurrentSize(layers=1, d_model=8, dropout=0.1, **settings)), tokens(1, 5)
    state = model.start(source, source > 0)
    return model, state, state.memory[0]


def additive_energies(attention: AdditiveAttention, state: Tensor, memory: Tensor) -> Tensor:
    inner = [torch.tanh(attention.of_state.weight @ state + attention.of_memory.weight @ position) for position in memory]
    return torch.stack([attention.energy.weight[0] @ one for one in inner])


@pytest.mark.parametrize("kind", ["additive", "dot"])
@torch.no_grad()
def test_a_step_of_a_recurrent_decoder_reads_what_its_previous_state_attends_to(kind: str) -> None:
    model, state, memory = begun(attention=kind)
    ((before, cell),) = state.hidden
    energies = additive_energies(model.attention, before[0], memory) if kind == "additive" else memory @ before[0]
    context = energies.softmax(dim=0) @ memory
    read = torch.cat((model.embedding.weight[7] * math.sqrt(8), context))
    after, _ = model.decoder[0](read, (before[0], cell[0]))
    combined = torch.tanh(model.combine(torch.cat((after, context))))
    assert torch.allclose(model.step(torch.tensor([7]), state)[0], model.embedding.weight @ combined, atol=1e-12)


def maxout(layer: torch.nn.Module, *read: Tensor) -> Tensor:
    pairs = layer(torch.cat(read))
    return torch.stack([torch.maximum(pairs[2 * row], pairs[2 * row + 1]) for row in range(len(pairs) // 2)])


@torch.no_grad()
def test_two_steps_of_bahdanaus_decoder_are_the_equations_of_a_2_2() -> None:
    # A row of the memory is the forward state, then the backward state, of half the width each.
    model, state, memory = begun(decoder="bahdanau", cell="gru")
    s = torch.tanh(model.initial[0](memory[0, 4:]))
    for token in (7, 9):
        context = additive_energies(model.attention, s, memory).softmax(dim=0) @ memory
        embedded = model.embedding.weight[token] * math.sqrt(8)
        wanted = model.embedding.weight @ maxout(model.combine, s, embedded, context)
        s = model.decoder[0](torch.cat((embedded, context)), s)
        assert torch.allclose(model.step(torch.tensor([token]), state)[0], wanted, atol=1e-12)


@torch.no_grad()
def test_two_steps_of_luongs_decoder_attend_with_the_new_state_and_feed_the_attentional_state() -> None:
    model, state, memory = begun(decoder="luong", attention="dot", bidirectional=False)
    ((first, cell),) = ((h[0], c[0]) for h, c in state.hidden)
    assert torch.equal(first, memory[-1])
    h, attentional = first, torch.zeros(8, dtype=torch.float64)
    for token in (7, 9):
        h, cell = model.decoder[0](torch.cat((model.embedding.weight[token] * math.sqrt(8), attentional)), (h, cell))
        context = (memory @ h).softmax(dim=0) @ memory
        attentional = torch.tanh(model.combine(torch.cat((context, h))))
        assert torch.allclose(model.step(torch.tensor([token]), state)[0], model.embedding.weight @ attentional, atol=1e-12)


@torch.no_grad()
def test_two_steps_of_chos_decoder_read_the_fixed_vector_each_time() -> None:
    model, state, _ = begun(decoder="cho", cell="gru", attention="none", bidirectional=False)
    h = torch.zeros(8, dtype=torch.float64)
    encoder = torch.nn.GRUCell(8, 8).double()
    encoder.load_state_dict({name.removesuffix("_l0"): value for name, value in model.encoder.state_dict().items()})
    for token in tokens(1, 5)[0]:
        h = encoder(model.embedding.weight[token] * math.sqrt(8), h)
    context = torch.tanh(model.summary(h))
    h = torch.tanh(model.initial[0](context))
    for token in (7, 9):
        embedded = model.embedding.weight[token] * math.sqrt(8)
        h = model.decoder[0](torch.cat((embedded, context)), h)
        wanted = model.embedding.weight @ maxout(model.combine, h, embedded, context)
        assert torch.allclose(model.step(torch.tensor([token]), state)[0], wanted, atol=1e-12)


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_reverse_source_is_reading_the_reversed_sentence_with_memory_in_the_order_of_the_source(attention: str) -> None:
    plain = RecurrentSize(layers=1, d_model=8, dropout=0.1, attention=attention, bidirectional=False)  # type: ignore[arg-type]
    models = [built(plain), built(replace(plain, reverse_source=True))]
    source = torch.tensor([[11, 12, 13, 3, 0], [15, 16, 17, 18, 3], [3, 0, 0, 0, 0]])
    by_hand = torch.tensor([[13, 12, 11, 3, 0], [18, 17, 16, 15, 3], [3, 0, 0, 0, 0]])
    with torch.no_grad():
        wanted, state = (model.start(given, given > 0) for model, given in zip(models, (by_hand, source), strict=True))
    assert torch.equal(state.hidden[0][0], wanted.hidden[0][0])  # type: ignore[attr-defined]
    assert torch.equal(state.memory[0], wanted.memory[0, [2, 1, 0, 3, 4]])  # type: ignore[attr-defined]
    assert torch.equal(state.memory[1], wanted.memory[1, [3, 2, 1, 0, 4]])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("preset", "count"),
    # One shared embedding of 40,000 subwords, no learned positions; a normalised map of n to m has n m directions, m lengths and m biases.
    [
        # Gehring et al. 2017, 5.1: 512 units in the first ten layers, 768 in the next three, then two of 2,048 with one input.
        ("wmt14-en-de", 111_849_984),
        # fairseq, fconv_wmt_en_de: d_model 768; nine layers of 512, four of 1,024, two of 2,048 with one input.
        ("fconv-wmt-en-de", 157_241_856),
    ],
)
def test_the_published_convolutional_sizes_have_their_number_of_parameters(preset: str, count: int) -> None:
    with torch.device("meta"):
        model = build(architectures()["convolutional"].presets[preset], 40_000)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_a_layer_of_another_width_projects_its_input_for_the_residual() -> None:
    size = ConvolutionalSize(layers=2, d_model=6, dropout=0.1, convolutions=((4, 1, 1), (10, 1, 1)))
    model = built(size)
    source = tokens(1, 5)
    with torch.no_grad():
        embedded = 0.1 * (model.embedding(source) + model.positions(0, 5))[0]
        x = embedded @ weight(model.encoder_input).T + model.encoder_input.bias
        for layer in model.encoder:
            convolved = x @ weight(layer.convolution.linear).T + layer.convolution.linear.bias
            gated = functional.glu(convolved, dim=-1)
            if layer.residual.state_dict():
                x = x @ weight(layer.residual).T + layer.residual.bias
            x = (gated + x) * math.sqrt(0.5)
        wanted = x @ weight(model.encoder_output).T + model.encoder_output.bias
        assert torch.allclose(model.start(source, source > 0).keys[0], wanted, atol=1e-12)


def test_a_layer_of_the_convolutional_decoder_is_the_papers_formula() -> None:
    model = built(ConvolutionalSize(layers=1, d_model=6, dropout=0.1, kernel=3))
    layer = model.decoder[0]
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


def test_a_block_of_bytenet_is_figure_3_and_its_decoder_reads_the_encoders_output_at_its_own_place() -> None:
    model = built(ByteNetSize(layers=2, d_model=8, dropout=0.1))
    source, target = tokens(1, 5), tokens(1, 9)

    def block(layer: torch.nn.Module, x: Tensor, before: int, after: int) -> Tensor:
        """By PyTorch's dilated convolution: a row of our matrix runs over the places of a channel, then over channels."""
        first, second, third = layer.norms
        read = functional.relu(second(layer.narrowed(functional.relu(first(x)))))
        kernel = layer.convolution.weight.reshape(4, 4, 3)
        padded = functional.pad(read.transpose(1, 2), (before, after))
        convolved = functional.conv1d(padded, kernel, layer.convolution.bias, dilation=layer.dilation).transpose(1, 2)
        return x + layer.widened(functional.relu(third(convolved)))

    with torch.no_grad():
        # Six places for a source of five tokens; nine target tokens then have zeros at the last three.
        x = functional.pad(model.embedding(source), (0, 0, 0, 1))
        for number, layer in enumerate(model.encoder):
            x = block(layer, x, 2**number, 2**number)
        y = model.embedding(target) + functional.pad(model.encoder_norm(x), (0, 0, 0, 3))
        for number, layer in enumerate(model.decoder):
            y = block(layer, y, 2 * 2**number, 0)
        assert torch.allclose(model(source, source > 0, target), model.decoder_norm(y), atol=1e-12)


@pytest.mark.parametrize("energies", ["dot", "additive"])
def test_other_energies_take_the_place_of_the_scaled_ones_in_training_and_decoding(energies: str) -> None:
    model = built(replace(ABLATION, energies=energies, dropout=0.0))  # type: ignore[arg-type]
    attention = model.decoder[0].cross_attention
    query, key, value = (torch.randn(1, 4, length, width, dtype=torch.float64) for length, width in ((2, 6), (3, 6), (3, 5)))
    with torch.no_grad():
        for head in range(4):
            for place in range(2):
                q, keys = query[0, head, place], key[0, head]
                found = [q @ k if energies == "dot" else attention.attend.vectors[head] @ torch.tanh(q + k) for k in keys]
                wanted = torch.stack(found).softmax(dim=0) @ value[0, head]
                assert torch.allclose(attention.attend(query, key, value, None, attention.dropout)[0, head, place], wanted, atol=1e-12)
        source, target = tokens(3, 5), tokens(3, 7)
        before = model.project(model(source, source > 0, target))
        prepare_for_training(model, torch.device("cpu"), "float64")
        prepare_for_decoding(model)
        assert all(module.attend.energies for module in model.modules() if isinstance(module, MultiHeadAttention))
        state = model.start(source, source > 0)
        after = torch.stack([model.step(target[:, place], state) for place in range(7)], dim=1)
        assert torch.allclose(before, after, atol=1e-12)


def test_without_residuals_a_layer_is_its_sublayers_and_norms_alone() -> None:
    model = built(replace(ABLATION, residual=False))
    layer, x = model.encoder[0], torch.randn(1, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        attended = layer.self_attention(*layer.self_attention.project(x), None)
        wanted = layer.round_feed_forward.norm(layer.feed_forward(layer.round_attention.norm(attended)))
        assert torch.allclose(layer(x, None), wanted, atol=1e-12)


def test_an_ablation_translates_in_bf16() -> None:
    model = built(replace(ABLATION, energies="additive")).bfloat16()
    source = tokens(2, 5)
    assert all(beam_search(model, source, source > 0, Search(beam=2, max_extra=3)))


def test_an_ablation_is_for_experiments_alone() -> None:
    size = AblationSize(**{**vars(ABLATION), "d_k": 4, "d_v": 4})
    assert "CTranslate2 has no ablation model" in ctranslate2_export.unsupported(size)
    assert "its architecture (ablation)" in hugging_face.unsupported(size)
    assert not keeps_weights(built(replace(size, energies="dot")))
    assert all(recipes.load(name).model.architecture != "ablation" for name in recipes.names())


def test_the_convolutional_encoder_gets_a_share_of_its_gradient_and_values_hold_the_embeddings_too() -> None:
    model = built(ConvolutionalSize(layers=3, d_model=6, dropout=0.1))
    outputs: list[Tensor] = []
    model.encoder[-1].register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    source = tokens(1, 5)
    state = model.start(source, source > 0)
    outputs[0].retain_grad()
    picked = torch.randn_like(state.keys)
    (state.keys * picked).sum().backward()
    assert torch.allclose(outputs[0].grad, picked / (2 * 3), atol=1e-12)
    embedded = 0.1 * (model.embedding(source) + model.positions(0, 5))
    assert torch.allclose(state.keys, outputs[0], atol=1e-12)
    assert torch.allclose(state.values, (outputs[0] + embedded) * math.sqrt(0.5), atol=1e-12)


@pytest.mark.parametrize("architecture", architectures())
def test_bf16_gives_the_gradients_of_float32_up_to_its_rounding(architecture: str) -> None:
    torch.manual_seed(0)
    model = build(architectures()[architecture].presets["tiny"], VOCAB).eval()
    source, target = tokens(8, 9), tokens(8, 7)

    def gradients(bf16: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model.project(model(source, source > 0, target))
        functional.cross_entropy(logits.float().flatten(0, 1), target.flatten()).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    exact, rounded = gradients(bf16=False), gradients(bf16=True)
    # bf16 keeps 8 bits, so a rounding is off by 2^-9 at most; some fifty on the way from the loss to a weight, at random, are 1.4%.
    # A ReLU's input that is rounded across 0 turns its gradient on or off: ByteNet has thirty of these in a row.
    assert (rounded - exact).norm() < (0.2 if architecture == "bytenet" else 0.04) * exact.norm()
    assert not torch.equal(rounded, exact)
