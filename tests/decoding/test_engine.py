"""Which engine is taken and why, and that chunks come out in order from either."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decoding.parity import WordsOnly, made_up_pairs
from tests.models.on_disk import SMALL, write_drawn, write_model
from tests.refusals import refused
from transformer_core.baselines.sizes import RecurrentSize
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import Choice, DecodingRequest, SourceChunk, choose_engine, load_engine, translated
from transformer_core.decoding.translator import Translator

POWER = Search(4, 0.6, "power", max_extra=20, patience=1)
SOURCES = [source for source, _ in made_up_pairs(50, seed=5)]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def directory(model: WordsOnly, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(model, tmp_path_factory.mktemp("learnt") / "model")


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
