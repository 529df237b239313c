"""`transformer_core.load`: translation in another program as the command translates, with the same choices."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.decoding.parity import WordsOnly
from tests.models.on_disk import translations, write_drawn, write_model
from tests.refusals import refused
from transformer_core import load
from transformer_core.cli import main
from transformer_core.config import PAPER_SEARCH
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.translator import Translator

LINES = ["the dog sees a cat", "", "a cat sees the house"]


@pytest.fixture(scope="module")
def directory(model: WordsOnly, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scored = PAPER_SEARCH.model_copy(update={"engine": "ctranslate2", "beam": 3, "penalty": "power", "alpha": 1.0})
    return write_model(model, tmp_path_factory.mktemp("learnt") / "model", decode=scored)


def test_a_loaded_model_translates_as_the_command_does(directory: Path, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    model = load(directory)
    for options, search in (((), {}), (("--beam", "1", "--max-extra", "3"), {"beam": 1, "max_extra": 3})):
        assert main(["translate", "--model", str(directory), *options, str(tmp_path / "in")]) == 0
        assert "".join(f"{text}\n" for text in model.translate(LINES, **search)).encode() == capfdbinary.readouterr().out


def test_hypotheses_have_scores_best_first_and_the_engine_asked_for_finds_them(directory: Path) -> None:
    found = load(str(directory), engine="torch").hypotheses(LINES, nbest=2, beam=4)
    wanted = translations(Translator.load(directory), LINES, Search(4, 1.0, "power", nbest=2))
    for ours, theirs in zip(found, wanted, strict=True):
        assert [(each.text, each.score) for each in ours] == [(each.text, each.score) for each in theirs[:2]]
    assert [len(ranked) for ranked in found] == [2, 1, 2]
    own = load(directory, precision="int8")
    assert own.translate(LINES)[1] == own.translate(LINES, beam=1)[1] == ""
    assert [type(engine) for engine in own._engines.values()] == [CTranslate2Engine]  # Loaded once.


def test_wrong_options_and_one_text_instead_of_a_list_are_named(directory: Path) -> None:
    with pytest.raises(TypeError, match="one text; put it in a list"):
        load(directory).translate("the dog")
    for options, fault in (
        ({"beams": 9}, r"options: beams: unknown key\. Did you mean beam"),
        ({"engine": "torch"}, "options: engine: unknown key"),
        ({"beam": 0}, "options: beam: must be greater"),
        ({"penalty": "gnmt"}, "penalty"),
        ({"patience": 0}, "options: patience: must be greater than 0"),
        ({"max_input": -5}, "options: max_input: must be greater than 0"),
    ):
        with refused(78, fault):
            load(directory).translate(["x"], **options)
    with refused(78, "options: precision: must be"):
        load(directory, precision="float16").translate(["x"])  # type: ignore[arg-type]
    for engine, device, fault in (
        ("pytorch", None, "engine: must be auto, torch"),
        (None, "gpu", "device: must be cpu"),
        (None, "cuda:99", r"device: cuda:99 requested, \d+ GPUs here"),
        (None, "meta", r"device: meta requested"),
    ):
        with refused(78, fault):
            load(directory, engine=engine, device=device)  # type: ignore[arg-type]


def test_a_precision_and_a_shortlist_that_were_not_asked_for_give_way(directory: Path, tmp_path: Path) -> None:
    own = PAPER_SEARCH.model_copy(update={"engine": "torch", "precision": "bf16", "shortlist": True})
    model = write_drawn(tmp_path / "model", decode=own)
    assert load(model, directory).translate([""]) == [""]
    own_and_asked = replace(load(model, engine="ctranslate2"), shortlist=False)
    assert own_and_asked.prepared().wanted.precision == "float32"
