"""Marian models of Hugging Face's transformers: ours in it, and one of its own here, with 200 sentences of the bundled corpus."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from tests.clone import bundled
from tests.flows.test_served_model import predictor
from tests.models.on_disk import SMALL, translations, with_drawn_norms, write_drawn, write_model
from tests.refusals import refused
from transformer_core import load
from transformer_core.corpus.sources.catalogue import Translated
from transformer_core.corpus.text import Pair
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, UNK, Subword, padded
from transformer_core.decoding.beam import Search
from transformer_core.decoding.corpus import translated_text
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.hugging_face import export_model, import_model
from transformer_core.decoding.restricted import Shortlisted
from transformer_core.decoding.shards import Shards
from transformer_core.decoding.translator import Translator
from transformer_core.files import read_json, write_json
from transformer_core.models.architectures import build
from transformer_core.models.directory import load_model, read_config, save_model
from transformer_core.models.ops.choice import can_pack
from transformer_core.presets import TransformerSize
from transformer_core.training.loss import cross_entropy

PAIRS = [line.rstrip("\n").split("\t")[:2] for line in bundled("tatoeba/valid.tsv", 1_000)]
# Characters that no vocabulary has, one that the target's alone has, and a mark of Unicode that is normalised.
SOURCES, TARGETS = [f"{PAIRS[0][0]} ß 漢字 ﬁ", *(source for source, _ in PAIRS[1:200])], [target for _, target in PAIRS[:200]]
WITH_BIASES = replace(SMALL, layers=2, activation="swish", attention_bias=True, output_bias=True)


def read(folder: Path) -> tuple[Any, Any]:
    return transformers.AutoTokenizer.from_pretrained(folder), transformers.MarianMTModel.from_pretrained(folder).eval().double()


Rows = list[list[int]]


def logits(model: Any, sources: Rows, targets: Rows, pad: int = PAD, start: int = BOS) -> Tensor:
    """(n, V): at each real target token."""
    tokens, target = (pad_sequence([torch.tensor(row) for row in side], True, pad) for side in (sources, targets))
    shifted = functional.pad(target[:, :-1], (1, 0), value=start)
    if isinstance(model, transformers.MarianMTModel):
        return model(input_ids=tokens, attention_mask=(tokens != pad).long(), decoder_input_ids=shifted).logits[target != pad]
    return model.project(model(tokens, tokens != pad, shifted))[target != pad]


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (replace(WITH_BIASES, heads=4, d_k=4, d_v=4), {"byte_fallback": True, "user_symbols": ["<x>"]}),
        (replace(WITH_BIASES, tied="decoder", decoder_layers=1, activation="gelu"), {"type": "unigram", "lowercase": True}),
        (replace(SMALL, tied="none"), {}),
    ],
)
@torch.no_grad()
def test_an_exported_model_has_our_ids_and_logits_and_comes_back(size: TransformerSize, settings: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = with_drawn_norms(build(size, 400))
    write_model(model, tmp_path / "model", [f"{source} <x> {target}" for source, target in PAIRS], **settings)
    export_model(tmp_path / "model", tmp_path / "out")
    tokenizer, theirs = read(tmp_path / "out")
    subword = Subword.load(tmp_path / "spm.model")
    own = model.eval().double()
    sources, targets = ([*map(subword.encode, side)] for side in (SOURCES, TARGETS))
    assert tokenizer(SOURCES).input_ids == sources
    assert torch.allclose(logits(own, sources, targets), logits(theirs, sources, targets), atol=1e-5)
    back = import_model(tmp_path / "out", tmp_path / "back")
    assert (back.model, back.vocabulary) == (size, read_config(tmp_path / "model/config.json").vocabulary)
    first, second = (load_model(tmp_path / name)[0].state_dict() for name in ("model", "back"))
    assert all(torch.equal(second[name], weight) for name, weight in first.items())


@torch.no_grad()
def marian(folder: Path, kind: str = "unigram", **settings: Any) -> Path:
    """A model with random weights as OPUS-MT's are: two subword models, a vocabulary in an order of its own, padding as the first token."""
    folder.mkdir()
    found = {">>deu<<"}
    for side, name in enumerate(("source", "target")):
        options = {"vocab_size": 300, "character_coverage": 0.998, "normalization_rule_name": "nmt_nfkc", "minloglevel": 2}
        lines = (pair[side] for pair in PAIRS)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_prefix=str(folder / name), model_type=kind, **options)
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        found.update(processor.id_to_piece([*range(3, 290)]))  # Some pieces are not in the vocabulary, as in OPUS-MT's.
    pieces = ["</s>", "<unk>", *sorted(found), "<pad>"]
    pad = len(pieces) - 1
    write_json(folder / "vocab.json", {piece: token for token, piece in enumerate(pieces)})
    torch.manual_seed(2)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": None}
    config = {"vocab_size": len(pieces), "encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "swish"}
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**sizes, **special, **config, "scale_embedding": True, **settings}))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.normal_(mean=float(parameter.dim() == 1), std=0.2)
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "de"})
    return folder


@torch.no_grad()
def test_an_imported_model_has_the_token_ids_logits_and_text_of_transformers_and_goes_out_again(tmp_path: Path) -> None:
    folder = marian(tmp_path / "marian")
    config = import_model(folder, tmp_path / "model")
    assert (config.source, config.target, config.model.attention_bias, config.model.output_bias) == ("en", "de", True, True)
    tokenizer, theirs = read(folder)
    subword, own = Subword.load(tmp_path / "model/spm.model"), load_model(tmp_path / "model")[0].double()
    ids = tokenizer.get_vocab()
    pieces = (piece.replace("▁>>", ">>") for piece in subword.pieces[EOS + 1 :])
    rows, order = [ids[piece] for piece in ("<pad>", "<unk>", "<pad>", "</s>", *pieces)], [PAD, UNK, *range(EOS, len(subword.pieces))]
    assert sorted(rows) == [*range(len(ids)), ids["<pad>"]]
    lines = [f">>deu<< {SOURCES[0]}", *SOURCES[1:]]
    sources, targets = [subword.encode(line) for line in lines], [subword.of_target.encode(line) for line in TARGETS]
    their_sources, their_targets = tokenizer(lines).input_ids, tokenizer(text_target=TARGETS).input_ids
    assert [[rows[token] for token in source] for source in sources] == their_sources
    assert [[rows[token] for token in target] for target in targets] == their_targets
    assert all(any(UNK in tokens for tokens in side) for side in (sources, targets))
    assert "ß" in subword.processor.decode(sources[0])
    found, wanted = logits(own, sources, targets), logits(theirs, their_sources, their_targets, rows[PAD], rows[BOS])
    assert torch.allclose(found[:, order], wanted[:, [rows[token] for token in order]], atol=1e-5)
    assert found.softmax(dim=-1)[:, BOS].max() == 0
    torch.save(transformers.MarianMTModel.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    import_model(folder, tmp_path / "bin")
    assert (tmp_path / "bin/config.json").read_bytes() == (tmp_path / "model/config.json").read_bytes()
    export_model(tmp_path / "model", tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (again(lines).input_ids, again(text_target=TARGETS).input_ids) == (sources, targets)


def test_an_imported_model_learns_and_what_it_has_learnt_is_the_same_text_in_three_engines(tmp_path: Path) -> None:
    config = import_model(marian(tmp_path / "marian", d_model=32), tmp_path / "model")
    model, subword = load_model(tmp_path / "model")[0].train(), Subword.load(tmp_path / "model/spm.model")
    torch.manual_seed(1)  # Of dropout: an output that repeats itself without end may differ in where it is cut.
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    learnt = [pair for pair in PAIRS if UNK not in subword.of_target.encode(pair[1])][:16]
    pairs = [(subword.encode(source), subword.of_target.encode(target)) for source, target in learnt]
    source, target = (torch.from_numpy(padded(side)) for side in zip(*pairs, strict=True))
    real = target != PAD
    for _ in range(300):
        hidden = model(source, source != PAD, functional.pad(target[:, :-1], (1, 0), value=BOS))[real]
        optimizer.zero_grad()
        (cross_entropy(*model.factors(hidden), target[real], label_smoothing=0.1).objective / real.sum()).backward()
        optimizer.step()
    save_model(tmp_path / "tuned", dict(model.state_dict()), config, tmp_path / "model/spm.model")
    export_model(tmp_path / "tuned", tmp_path / "out")
    (tokenizer, theirs), translator = read(tmp_path / "out"), Translator.load(tmp_path / "tuned", precision="float64")
    engine = CTranslate2Engine.load(tmp_path / "tuned", threads=1)
    sources = [source for source, _ in learnt]
    for beam in (1, 4):
        search = Search(beam, 1.0, "power", patience=1)
        outputs = theirs.generate(**tokenizer(sources, return_tensors="pt", padding=True), num_beams=beam, length_penalty=1.0)
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        assert sum(text == target for text, (_, target) in zip(texts, learnt, strict=True)) > 8
        assert [ranked[0].text for ranked in translations(translator, sources, search)] == texts
        assert [ranked[0].text for ranked in engine.translate_tokens([tokens for tokens, _ in pairs], search, 4096)] == texts


def test_an_imported_model_is_served_and_translates_a_corpus(tmp_path: Path) -> None:
    """As `load` translates with it, with the search of its generation_config.json, or with that of the source `translated`."""
    directory, texts = tmp_path / "model", SOURCES[:6]
    import_model(marian(tmp_path / "marian"), directory)
    found = predictor(directory)(texts, {"max_extra": 9})
    assert found == load(directory).translate(texts, max_extra=9)
    assert len({*found}) > 1
    wanted, pairs = Translated(corpus="news", model="opus", side="target", beam=2), [Pair(text.encode(), b"") for text in texts]
    made = list(translated_text(Shards(tmp_path / "shards"), ("en", "de"), wanted, directory, iter(pairs)))
    expected = load(directory).translate(texts, beam=2, alpha=wanted.alpha, penalty="wu", max_extra=Search.max_extra)
    assert [(pair.source.decode(), pair.target.decode()) for pair in made] == list(zip(texts, expected, strict=True))


def test_the_loss_of_a_model_with_an_output_bias_is_that_of_its_logits() -> None:
    model = build(WITH_BIASES, 40).double()
    assert model.output_bias is not None
    torch.nn.init.normal_(model.output_bias)
    hidden, wanted = torch.randn(9, 16, dtype=torch.float64, requires_grad=True), torch.arange(4, 13)
    expected = functional.cross_entropy(model.project(hidden), wanted, reduction="sum")
    gradients = torch.autograd.grad(expected, [hidden, model.output_bias, model.output_weight])
    loss = cross_entropy(*model.factors(hidden), wanted, label_smoothing=0.0)
    found = torch.autograd.grad(loss.objective, [hidden, model.output_bias, model.output_weight])
    assert torch.allclose(loss.objective, expected)
    assert all(map(torch.allclose, found, gradients))


@torch.no_grad()
def test_a_shortlist_has_the_output_bias_of_its_subwords_and_packed_batches_take_no_model_with_biases() -> None:
    model = build(WITH_BIASES, 40).eval()
    assert model.output_bias is not None
    torch.nn.init.normal_(model.output_bias)
    tokens, source = torch.tensor([BOS]), torch.tensor([[5, 6, EOS]])
    ids = np.array([*range(EOS + 1), 7, 30])
    shortlisted = Shortlisted(model, [ids])
    logits = shortlisted.step(tokens, shortlisted.start(source, source != PAD))
    assert torch.allclose(logits, model.step(tokens, model.start(source, source != PAD))[:, ids], atol=1e-6)
    settings = ({"attention_bias": True}, {"output_bias": True}, {"activation": "gelu"})
    assert [can_pack(SMALL), *(can_pack(SMALL.changed(setting)) for setting in settings)] == [True, False, False, False]


def test_what_one_of_the_two_cannot_hold_is_refused_in_one_line(tmp_path: Path) -> None:
    for size, line in (
        (replace(SMALL, norm="pre"), r"its norm \(pre\) is not that of MarianMTModel \(post\)"),
        (replace(SMALL, positions="learned"), r"its positions \(learned\)"),
        (replace(SMALL, d_k=4), r"its d_k and d_v \(4, 8\) are not d_model / heads"),
    ):
        with refused(78, line):
            export_model(write_drawn(tmp_path / "model", size), tmp_path / "out")
    for key, value, line in (("scale_embedding", False, "are not scaled"), ("decoder_ffn_dim", 64, "other widths than its decoder")):
        with refused(78, line):
            import_model(marian(tmp_path / key, **{key: value}), tmp_path / "out")
    with refused(65, "a BPE model that lacks pieces of the vocabulary"):
        import_model(marian(tmp_path / "bpe", "bpe"), tmp_path / "out")
    folder = marian(tmp_path / "marian")
    with refused(65, "a model of Hugging Face, not a model directory. Convert it: transformer-core import"):
        read_config(folder / "config.json")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    with refused(65, "pytorch_model.bin: damaged"):
        import_model(folder, tmp_path / "out")
    (folder / "tokenizer_config.json").unlink()
    with refused(78, "Name them: --source, --target."):
        import_model(folder, tmp_path / "out")
    (folder / "vocab.json").write_text(json.dumps(read_json(folder / "vocab.json") | {"more": 1}), encoding="utf-8")
    with refused(65, "vocab.json: not one piece for each of the 5.. token ids"):
        import_model(folder, tmp_path / "out", "en", "de")
    assert not (tmp_path / "out").exists()
