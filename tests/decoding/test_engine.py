"""The engines: CTranslate2 beside our own model and search, on the same weights, and which of them is taken and why."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import torch

from tests.decoding.parity import TIE, WordsOnly, differences, forced_log_probabilities, given_not_empty, made_up_pairs, searched
from tests.models.on_disk import SMALL, VOCAB, translations, with_drawn_norms, write_drawn, write_model
from tests.refusals import refused
from transformer_core.baselines.sizes import RecurrentSize
from transformer_core.config import PAPER_SEARCH, Penalty
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.decoding import ctranslate2_engine as engine_module
from transformer_core.decoding.beam import Search, length_penalty
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.ctranslate2_export import export_model
from transformer_core.decoding.engine import Choice, DecodingRequest, SourceChunk, choose_engine, load_engine, translated
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.translator import Translator
from transformer_core.files import read_json
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=24, d_ff=40, heads=4, d_k=6, d_v=6, dropout=0.1)
MAX_EXTRA = 10
THEIRS = Search(4, 0.6, "power", max_extra=MAX_EXTRA, patience=1)
POWER = Search(4, 0.6, "power", max_extra=20, patience=1)
SOURCES, MANY = ([source for source, _ in made_up_pairs(count, seed)] for count, seed in ((50, 5), (200, 1_000)))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def drawn(**changes: Any) -> Transformer:
    """A model that has learnt nothing: its outputs never end."""
    torch.manual_seed(0)
    return with_drawn_norms(Transformer(replace(SIZE, **changes), VOCAB).eval())


def load(model: Transformer, folder: Path, threads: int = 2) -> CTranslate2Engine:
    return CTranslate2Engine.load(write_model(model, folder / "model"), threads)


@pytest.fixture(scope="module")
def directory(model: WordsOnly, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(model, tmp_path_factory.mktemp("learnt") / "model")


@pytest.fixture(scope="module")
def engine(directory: Path) -> CTranslate2Engine:
    return CTranslate2Engine.load(directory, 2)


def search(
    engine: CTranslate2Engine, sources: list[list[int]], settings: Search, batch_tokens: int = 4096, scored: bool = True
) -> list[list[Finished]]:
    """Translate as `begin` does, but return token ids."""
    lists = engine.begin(sources, settings, batch_tokens, scored)()
    return [[Finished(found.ids, found.log_probability, found.score) for found in ranked] for ranked in lists]


CONVERTED: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"tied": "decoder"},
    {"tied": "none"},
    {"d_k": 5, "d_v": 5},
    {"d_k": 3, "d_v": 7},
    {"d_k": 9, "d_v": 2, "norm": "pre"},
    {"activation": "swish", "attention_bias": True, "output_bias": True},
    {"activation": "gelu", "attention_bias": True, "d_k": 3, "d_v": 7},
    {"positions": "learned", "most_positions": 30},
    {"positions": "none"},
    {"layers": 1, "d_model": 32, "d_ff": 20, "heads": 2},
    {"dropout": 0.5, "attention_dropout": 0.5, "relu_dropout": 0.5},
]


def test_the_parity_of_every_size_that_is_converted_is_tested() -> None:
    assert {"architecture"}.union(*CONVERTED) == TransformerSize.keys_that_are("exported")


@pytest.mark.parametrize("changes", CONVERTED, ids=str)
def test_forced_log_probabilities_equal_ours(changes: dict[str, Any], tmp_path: Path) -> None:
    model = drawn(**changes)
    engine = load(model, tmp_path)
    pairs = list(made_up_pairs(20, seed=3))
    pieces = [[[engine.subword.processor.id_to_piece(token) for token in side[:-1]] for side in pair] for pair in pairs]
    scored = engine.translator.score_batch([source for source, _ in pieces], [target for _, target in pieces])
    for (source, target), theirs in zip(pairs, scored, strict=True):
        # Float32, and sums of at most some 40 terms of size 1.
        assert torch.allclose(forced_log_probabilities(model, source, target), torch.tensor(theirs.log_probs), atol=1e-4)


def test_what_is_exported_translates_pieces_of_a_text_as_they_are(model: WordsOnly, engine: CTranslate2Engine, tmp_path: Path) -> None:
    """As a user does it who has the exported directory, CTranslate2 and SentencePiece, with the search of the model."""
    source = write_model(model, tmp_path / "model", decode=PAPER_SEARCH.model_copy(update={"beam": 3, "alpha": 1.4}))
    export_model(source, tmp_path / "out")
    subword = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/spm.model"))
    line = "the dog sees a cat"
    pieces = subword.encode(line, out_type=str)
    options = read_json(tmp_path / "out/search.json")
    assert options == {"beam_size": 3, "length_penalty": 1.4}
    (result,) = ctranslate2.Translator(str(tmp_path / "out")).translate_batch([pieces], disable_unk=True, **options)
    ((best, *_),) = engine.translate_tokens([engine.subword.encode(line)], replace(THEIRS, beam=3, alpha=1.4), 4096)
    assert subword.decode(result.hypotheses[0]) == best.text != ""


@pytest.mark.parametrize("beam", [2, 4, 6])
@pytest.mark.parametrize("alpha", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("penalty", ["power", "wu"])
def test_with_their_stopping_rule_our_beam_finds_theirs_but_for_ties_and_with_the_proved_stop_theirs_or_better(
    beam: int, alpha: float, penalty: Penalty, model: WordsOnly, engine: CTranslate2Engine
) -> None:
    """Both keep the same live hypotheses. With the proved stop ours cannot miss what theirs finds, which ends fewer and stops earlier."""
    settings = replace(THEIRS, beam=beam, alpha=alpha, penalty=penalty)
    theirs = search(engine, MANY, settings)
    found = differences(model, MANY, searched(model, MANY, settings), theirs, settings)
    assert {*found} <= {"tie", "theirs is cut"}
    assert len(found) < len(MANY) / 10
    if penalty == "power":
        proved = replace(settings, alpha=alpha if alpha > 0.3 else 0.0, patience=None)
        assert "theirs is better" not in differences(model, MANY, searched(model, MANY, proved), search(engine, MANY, proved), proved)


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("max_extra", [1, MAX_EXTRA])
def test_greedy_outputs_equal_ours_but_for_ties_and_end_at_the_max_length_as_ours_do(
    max_extra: int, scored: bool, model: WordsOnly, engine: CTranslate2Engine
) -> None:
    settings = Search(beam=1, max_extra=max_extra)
    mine, theirs = searched(model, MANY, settings), search(engine, MANY, settings, scored=scored)
    assert {*differences(model, MANY, mine, theirs, settings)} <= {"tie"}
    assert any(len(output.tokens) == len(source) - 1 + max_extra for source, (output,) in zip(MANY, theirs, strict=True))
    assert len({tuple(output.tokens) for output, *_ in theirs}) > 100  # Or equality would say little.


def test_outputs_that_do_not_end_are_cut_at_the_max_length_of_their_own_sentence(tmp_path: Path) -> None:
    model = drawn()
    lengths = (7, 1, 60, 3, 1)
    sources = [[*[5] * count, EOS] for count in lengths]
    engine = load(model, tmp_path)
    for beam, scored in ((1, True), (1, False), (2, True)):
        settings = Search(beam, 0.6, "power", max_extra=5)
        found = search(engine, sources, settings, scored=scored)
        assert [{len(output.tokens) for output in outputs} for outputs in found] == [{length + 5} for length in lengths]
        assert beam > 1 or [output.tokens for (output,) in found] == [output.tokens for (output,) in searched(model, sources, settings)]


@pytest.mark.parametrize(("beam", "patience"), [(2, None), (4, 1.0), (4, 2.0), (4, 0.3), (4, 0.1)])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_without_scores_the_best_output_is_the_same(beam: int, patience: float | None, alpha: float, engine: CTranslate2Engine) -> None:
    settings = Search(beam, alpha, "power", max_extra=2, patience=patience)
    scored, alone = (search(engine, MANY, settings, scored=scored) for scored in (True, False))
    assert [outputs[0].tokens for outputs in scored] == [outputs[0].tokens for outputs in alone]
    assert all(len(outputs) == 1 for outputs in alone)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("penalty", ["power", "wu"])
def test_scores_are_log_probabilities_given_no_special_token_over_the_length_penalty(
    beam: int, penalty: Penalty, model: WordsOnly, engine: CTranslate2Engine
) -> None:
    settings = replace(THEIRS, beam=beam, penalty=penalty)
    for source, outputs in zip(MANY[:40], search(engine, MANY[:40], settings), strict=True):
        assert [output.score for output in outputs] == sorted((output.score for output in outputs), reverse=True)
        for output in outputs:
            found = [output.tokens]
            if beam == 1 and len(output.tokens) == len(source) - 1 + MAX_EXTRA:  # The end token may be in the place of a likelier one.
                found = [[*output.tokens[:-1], token] for token in range(EOS, VOCAB)]
            forced = max(forced_log_probabilities(model, source, tokens).sum().item() for tokens in found)
            forced += given_not_empty(model, source, settings)
            assert output.log_probability == pytest.approx(forced, abs=TIE)
            assert output.score == pytest.approx(forced / length_penalty(float(len(output.tokens)), 0.6, penalty), abs=TIE)


def test_with_a_beam_no_output_is_empty_but_of_an_empty_source(tmp_path: Path) -> None:
    """Of a model whose likeliest output is empty; greedy search gives that."""
    model = drawn(tied="none")
    with torch.no_grad():
        model.output_weight.zero_()  # All tokens are equally likely, so each token more is less likely.
    engine = load(model, tmp_path)
    for patience in (None, 1.0, 2.0):
        lists = search(engine, [[4, 5, EOS], [EOS]], replace(THEIRS, alpha=0.0, patience=patience))
        assert [min(len(output.tokens) for output in outputs) for outputs in lists] == [2, 0]
    assert [len(output.tokens) for (output,) in search(engine, [[4, EOS]], replace(THEIRS, beam=1))] == [1]


def test_outputs_are_bounded_by_the_positions_that_were_learned(tmp_path: Path) -> None:
    engine = load(drawn(positions="learned", most_positions=9), tmp_path)
    assert {len(output.tokens) for output in search(engine, [[4, 5, 6, EOS]], Search(2, 0.6, "power", max_extra=50))[0]} == {9}
    with refused(65, "sentence 2: 10 tokens, but this model has 9 positions in CTranslate2"):
        search(engine, [[4, EOS], [*[4] * 9, EOS]], Search(2, 0.6, "power", max_extra=50))


def test_more_threads_change_no_bit(engine: CTranslate2Engine, model: WordsOnly, tmp_path: Path) -> None:
    assert search(load(model, tmp_path, threads=1), MANY, THEIRS, 64) == search(engine, MANY, THEIRS, 64)


def test_in_int8_most_greedy_outputs_stay(model: WordsOnly, engine: CTranslate2Engine, tmp_path: Path) -> None:
    greedy = replace(THEIRS, beam=1)
    eight_bits = CTranslate2Engine.load(write_model(model, tmp_path / "model"), 2, "int8")
    pairs = list(zip(search(eight_bits, MANY, greedy, 512), search(engine, MANY, greedy, 512), strict=True))
    assert any(ours[0].score != theirs[0].score for ours, theirs in pairs)
    # A model of this size has many near ties: on a CPU with VNNI 90% stay, on one without it, whose sums saturate, 30%. Of a wrong model
    # nearly none would.
    assert sum(ours[0].tokens == theirs[0].tokens for ours, theirs in pairs) >= 0.2 * len(pairs)


def test_the_vocabulary_map_is_our_shortlist_for_a_sentence_alone(tmp_path: Path) -> None:
    """A batch of one: CTranslate2 unites the shortlists of a batch."""
    directory = write_model(drawn(), tmp_path / "model")
    rows = [[other for other in (token + 1, token + 2) if EOS < other < VOCAB] if token > EOS else [] for token in range(VOCAB)]
    starts, targets = np.cumsum([0, *map(len, rows)]), np.array([target for row in rows for target in row])
    Shortlist(starts, targets, np.arange(4)).save(directory / SHORTLIST)
    theirs = CTranslate2Engine.load(directory, 1, shortlist=True)
    ours = Translator.load(directory, device=torch.device("cpu"), shortlist=True)
    greedy = Search(1, 0.0, "power", max_extra=MAX_EXTRA)
    chosen = [source for source in MANY[:60] if len(source) > 1]
    found = [theirs.begin([source], greedy, 4096, scored=False)()[0][0].text for source in chosen]
    wanted = [ours.translate_tokens([source], greedy)[0][0].text for source in chosen]
    without = [hypotheses[0].text for hypotheses in CTranslate2Engine.load(directory, 1).begin(chosen, greedy, 4096, scored=False)()]
    assert found == wanted
    assert found != without


def test_bytes_give_the_same_printable_text_with_either_engine(tmp_path: Path) -> None:
    """A model that has learnt nothing writes any bytes."""
    torch.manual_seed(1)
    bytes_too = with_drawn_norms(Transformer(SIZE, VOCAB + 256).eval())
    directory = write_model(bytes_too, tmp_path / "model", byte_fallback=True)
    theirs, ours = CTranslate2Engine.load(directory, 1), Translator.load(directory, device=torch.device("cpu"))
    greedy = Search(1, 0.0, "power", max_extra=MAX_EXTRA)
    texts = ["the 😀", "a {cat}", "犬\u200dé", *(chr(code) for code in range(300, 320))]
    tokens = [theirs.subword.encode(text) for text in texts]
    found = [ranked[0].text for ranked in theirs.translate_tokens(tokens, greedy, 4096)]
    assert found == [ranked[0].text for ranked in translations(ours, texts, greedy)]
    assert any("\ufffd" in text for text in found)
    assert all(text.isprintable() for text in found)


def test_a_signal_is_handled_while_ctranslate2_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the looks at a result. In CTranslate2's own wait the handler would run after all of the work."""
    slow = load(drawn(), tmp_path, threads=1)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGINT)))
    finish = slow.begin([[*[5] * 20, EOS]] * 100, replace(THEIRS, max_extra=60), 32)
    with pytest.raises(KeyboardInterrupt):
        finish()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_on_a_cpu_auto_is_ctranslate2_where_it_can_do_what_is_asked(precision: Any, directory: Path) -> None:
    for search in (Search(), POWER, replace(POWER, alpha=0.0), Search(beam=1), replace(POWER, patience=2.0)):
        assert choose_engine("auto", DecodingRequest([directory], search, precision)).engine == "ctranslate2"


# What CTranslate2 cannot do.
MISSING: list[tuple[dict[str, Any], str]] = [
    ({"models": 2}, "no ensembles"),
    ({"prefixes": True}, "not used with prefixes"),
    ({"device": torch.device("cuda")}, "not used on a GPU"),
    ({"precision": "bf16"}, "float32 and int8, and not in bf16"),
    ({"size": RecurrentSize(layers=1, d_model=8, dropout=0.0)}, "no recurrent model"),
]
# What it does in another way.
DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"shortlist": True}, "CTranslate2 unites the shortlists of a batch"),
    ({"scored": True}, "absence of special tokens"),
    ({"longest": 5_000}, "4,096 positions"),
]


def wanted(directory: Path, tmp_path: Path, size: Any = SMALL, models: int = 1, **options: Any) -> DecodingRequest:
    if size is not SMALL:
        directory = write_drawn(tmp_path / "other", size)
    return DecodingRequest([directory] * models, POWER, **options)


@pytest.mark.parametrize(("options", "reason"), [*MISSING, *DIFFERENT])
def test_elsewhere_auto_is_pytorch_and_a_name_is_followed(options: dict[str, Any], reason: str, directory: Path, tmp_path: Path) -> None:
    asked, missing = wanted(directory, tmp_path, **options), (options, reason) in MISSING
    choice = choose_engine("auto", asked)
    assert choice.engine == choose_engine("torch", asked).engine == "torch"
    assert reason in choice.reason
    in_int8 = asked if "precision" in options else replace(asked, precision="int8")
    if not missing:
        assert choose_engine("ctranslate2", asked).engine == choose_engine("auto", in_int8).engine == "ctranslate2"
        return
    for name, request in (("ctranslate2", asked), ("auto", in_int8)):
        if name == "ctranslate2" or request.precision == "int8":
            with refused(78, f"(engine ctranslate2|precision int8): .*{reason}"):
                choose_engine(name, request)  # type: ignore[arg-type]


def test_auto_is_pytorch_on_a_gpu(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = DecodingRequest([directory], POWER)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_engine("auto", asked) == Choice("torch", "there is a GPU")
    assert choose_engine("auto", replace(asked, precision="int8")) == Choice("ctranslate2", "the one with int8")
    assert choose_engine("auto", replace(asked, device=torch.device("cpu"))).engine == "ctranslate2"


@pytest.mark.parametrize("search", [POWER, replace(POWER, beam=1)], ids=["beam 4", "greedy"])
def test_either_engine_gives_the_same_text_chunk_by_chunk_in_order(search: Search, model: WordsOnly, directory: Path) -> None:
    asked = DecodingRequest([directory], search)
    chunks = [SourceChunk(SOURCES[:20]), SourceChunk([[EOS]]), SourceChunk([]), SourceChunk(SOURCES[20:])]
    fast = load_engine("ctranslate2", asked)
    texts, done = [], list[int]()
    for engine in (fast, Translator(model, fast.subword)):
        found = list(translated(engine, chunks, asked, 64, ahead=1, done=done.append))
        assert [len(results) for results in found] == [20, 1, 0, 30]
        texts.append([ranked[0].text for results in found for ranked in results])
    # With a beam CTranslate2 cuts an output at its maximum length, and we force the end token: the text is longer by a token.
    equal = [theirs == ours or (search.beam > 1 and theirs.startswith(ours)) for theirs, ours in zip(*texts, strict=True)]
    assert sum(equal) >= 50  # Of 51: a tie may differ.
    assert len({*texts[1]}) > 30
    assert sum(done) == 51 + 51


def test_ctranslate2_begins_a_chunk_before_the_one_before_is_waited_for(directory: Path) -> None:
    taken = []

    def chunks() -> Iterator[SourceChunk]:
        for number in range(4):
            taken.append(number)
            yield SourceChunk(SOURCES[number : number + 1])

    asked = DecodingRequest([directory], POWER)
    for name, ahead, expected in (("ctranslate2", 1, [0, 1]), ("ctranslate2", 0, [0]), ("torch", 1, [0])):
        taken.clear()
        next(translated(load_engine(name, asked), chunks(), asked, 64, ahead))
        assert taken == expected
