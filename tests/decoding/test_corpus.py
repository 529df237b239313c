"""Training text translated or scored shard by shard: what is made again, what `nearest` picks, and the formula of the scores."""

import itertools
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from sacrebleu.metrics.chrf import CHRF

from tests.models.on_disk import SMALL, TEXT, write_drawn
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import Translated
from transformer_core.corpus.text import Pair
from transformer_core.decoding import corpus, dual_cross_entropy, engine
from transformer_core.decoding import shards as shards_module
from transformer_core.decoding.beam import Search
from transformer_core.decoding.corpus import translated_text
from transformer_core.decoding.dual_cross_entropy import dual_scores
from transformer_core.decoding.scoring import score_tokens
from transformer_core.decoding.shards import Shards
from transformer_core.decoding.translator import Hypothesis, load_for_decoding
from transformer_core.errors import UserError
from transformer_core.files import read_json, write_json

TEXTS = [f"{line}{' dog' * (number % 4)}" for number in range(5) for line in TEXT]
PAIRS = [Pair(text.encode(), TEXT[number % 4].encode()) for number, text in enumerate(TEXTS)]
SETTINGS = Translated(corpus="news", model="teacher", side="target", beam=3)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "_PAIRS_PER_SHARD", 6)


def translated(folder: Path, teacher: Path, settings: Translated = SETTINGS, pairs: list[Pair[bytes]] = PAIRS) -> list[Pair[bytes]]:
    return list(translated_text(Shards(folder), ("en", "de"), settings, teacher, iter(pairs)))


def hypotheses_of(teacher: Path, scored: bool) -> list[list[Hypothesis]]:
    """The model's translations of the texts, with the engine that the machine has for them."""
    wanted = engine.DecodingRequest([teacher], Search(3, 0.6, nbest=3))
    loaded = engine.load_engine(engine.choose_engine("auto", wanted).engine, wanted)
    sources = [loaded.subword.encode(text) for text in TEXTS]
    return next(engine.translated(loaded, [engine.SourceChunk(sources)], replace(wanted, scored=scored), 4096, ahead=0))


def test_the_translations_are_those_of_the_model_in_the_order_of_the_text(tmp_path: Path, teacher: Path) -> None:
    wanted = [hypotheses[0].text for hypotheses in hypotheses_of(teacher, scored=False)]
    found = [(pair.source.decode(), pair.target.decode()) for pair in translated(tmp_path, teacher)]
    assert found == list(zip(TEXTS, wanted, strict=True))


def test_shards_of_changed_text_and_damaged_ones_are_made_again(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = translated(tmp_path, teacher)
    counted = Mock(wraps=engine.translated)
    monkeypatch.setattr(corpus, "translated", counted)
    assert translated(tmp_path, teacher, pairs=[Pair(b"the cat", b""), *PAIRS[1:]])[1:] == first[1:]
    assert [len(chunk.sources) for call in counted.call_args_list for chunk in call.args[1]] == [6]
    damages = (lambda text: text.split(b"\n", 1)[1], lambda text: text.replace(b"e", b"o", 1), lambda text: text[:-9], lambda _: b"")
    for path, damage in zip(sorted(tmp_path.iterdir()), itertools.cycle(damages), strict=False):
        path.write_bytes(damage(path.read_bytes()))
    assert translated(tmp_path, teacher) == first
    assert sum(len(chunk.sources) for call in counted.call_args_list for chunk in call.args[1]) == 6 + len(PAIRS)


def test_other_settings_and_weights_have_other_shards_and_unused_ones_are_removed(tmp_path: Path, teacher: Path) -> None:
    shards, other = Shards(tmp_path / "shards"), write_drawn(tmp_path / "other/model", seed=2)
    for settings, model, count in ((SETTINGS, teacher, 4), (SETTINGS.model_copy(update={"beam": 1}), teacher, 8), (SETTINGS, other, 12)):
        translated(shards.folder, model, settings)
        assert len(list(shards.folder.iterdir())) == count
    list(translated_text(shards, ("en", "de"), SETTINGS, teacher, iter(PAIRS[:6])))
    shards.remove_unused()
    assert len(list(shards.folder.iterdir())) == 1


def test_nearest_is_the_hypothesis_most_like_the_sentence_by_people(tmp_path: Path, teacher: Path) -> None:
    lists = hypotheses_of(teacher, scored=True)
    made = translated(tmp_path, teacher, SETTINGS.model_copy(update={"pick": "nearest"}))
    chrf = CHRF()
    picked = 0
    for pair, translation, hypotheses in zip(PAIRS, made, lists, strict=True):
        scores = {hypothesis.text: chrf.sentence_score(hypothesis.text, [pair.target.decode()]).score for hypothesis in hypotheses}
        assert scores[translation.target.decode()] == max(scores.values())
        picked += translation.target.decode() != hypotheses[0].text
    assert picked


def test_a_model_of_the_other_direction_and_text_that_is_not_utf8_are_refused(tmp_path: Path, teacher: Path, models: Path) -> None:
    with refused(65, r"config.json: translates en to de, and de to en is needed. translated.side is source."):
        translated(tmp_path, teacher, SETTINGS.model_copy(update={"side": "source"}))
    with pytest.raises(UserError, match=r"train of news:8: .*UTF-8"):
        translated(tmp_path, teacher, pairs=[*PAIRS[:7], Pair(b"caf\xe9", b"")])
    with pytest.raises(UserError, match=r"forward/config.json: translates en to de, and de to en is needed"):
        list(dual_scores(models, Shards(tmp_path), ("de", "en"), iter(SCORED)))


def test_a_text_that_is_too_long_and_an_empty_one_have_empty_translations(tmp_path: Path, teacher: Path) -> None:
    learned = write_drawn(tmp_path / "model", replace(SMALL, positions="learned", most_positions=12))
    for model, times in ((teacher, 400), (learned, 9)):
        made = translated(tmp_path / "shards", model, pairs=[Pair(b"the dog " * times, b""), Pair(b"", b""), Pair(b"the dog", b"")])
        assert [bool(pair.target) for pair in made] == [False, False, True]


SCORED = [Pair(f"{text}{' dog' * number}", other) for number in range(3) for text in TEXT[:2] for other in TEXT[2:]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with forward/ and backward/."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("forward", "backward")):
        directory = write_drawn(folder / name, seed=seed)
        if name == "backward":
            write_json(directory / "config.json", read_json(directory / "config.json") | {"source": "de", "target": "en"})
    return folder


def entropy(directory: Path, source: str, target: str) -> float:
    model, subword = load_for_decoding(directory)
    (logs,) = score_tokens(model, [subword.encode(source)], [subword.encode(target)], 4096)
    return -sum(logs) / len(logs)


def test_a_score_is_the_difference_of_the_cross_entropies_and_their_mean(models: Path, tmp_path: Path) -> None:
    found = list(dual_scores(models, Shards(tmp_path), ("en", "de"), iter(SCORED)))
    for pair, score in zip(SCORED, found, strict=True):
        forward, backward = entropy(models / "forward", *pair), entropy(models / "backward", pair.target, pair.source)
        assert score == pytest.approx(abs(forward - backward) + (forward + backward) / 2, abs=1e-5)


def test_a_pair_too_long_is_the_worst_and_no_shard_is_scored_twice(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [*SCORED, Pair("the dog " * 400, "der Hund"), Pair("", "der Hund")]
    whole = list(dual_scores(models, Shards(tmp_path), ("en", "de"), iter(pairs)))
    assert whole[-2:] == [float("inf")] * 2
    assert max(whole[:-2]) < float("inf")
    monkeypatch.delattr(dual_cross_entropy, "score_tokens")
    assert list(dual_scores(models, Shards(tmp_path), ("en", "de"), iter(pairs))) == whole
