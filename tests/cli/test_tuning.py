"""The settings by which a trained model goes on: on another domain with old pairs mixed in, and on a corpus that grew."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.models.on_disk import TEXT, VOCAB, write_drawn
from transformer_core import recipes
from transformer_core.config import Model, load_params, resolve
from transformer_core.corpus.sources.catalogue import load_entry
from transformer_core.corpus.text import write_lines
from transformer_core.models.directory import read_config


@pytest.fixture
def place(tmp_path: Path, call: Call) -> Path:
    """A project with a model, the corpus of its first training, and text of another domain."""
    (tmp_path / "dvc.yaml").touch()
    for name, pairs in (("first", 60), ("other", 30)):
        write_lines(tmp_path / f"{name}.en", [f"{TEXT[number % 2]} {name} {number}" for number in range(pairs)])
        write_lines(tmp_path / f"{name}.de", [f"{TEXT[2 + number % 2]} {name} {number}" for number in range(pairs)])
    assert call("data", "new", "first", "first.en", "first.de").code == 0
    write_drawn(tmp_path / "models/averaged")
    return tmp_path


def test_a_model_is_tuned_on_another_domain_with_old_pairs_and_both_test_sets(place: Path, call: Call) -> None:
    done = call("data", "tune", "other", "other.en", "other.de", "--from", "models/averaged", "--mix", "first", "--force")
    assert (done.code, done.err) == (0, "")
    entry, params = load_entry(place / "corpora/other.yaml"), load_params(place / "params.yaml")
    named = {source.name: (source.files or {})["en"].path for source in entry.splits.train}
    assert named == {"new": "../other.en", "old": "../first.en"}
    assert entry.tests["test_first"][0].files == load_entry(place / "corpora/first.yaml").splits.test[0].files  # type: ignore[index]
    assert (params.train.init_from, params.bpe.init_from, params.bpe.vocab_size) == ("other", "other", VOCAB)
    assert [stage.weights for stage in params.train.mix or ()] == [{"new": 1, "old": 1}]
    assert resolve(params.model).effective() == read_config(place / "pretrained/other/config.json").model.effective()
    assert (params.model.dropout, params.train.updates, params.train.learning_rate_factor) == (0.1, 200, 0.1)
    assert not params.bpe.byte_fallback
    written = (place / "corpora/other.yaml").read_bytes()
    assert call("data", "tune", "other", "--from", "models/averaged", "--mix", "first", "--force").code == 0
    assert (place / "corpora/other.yaml").read_bytes() == written
    code, line = call("data", "tune", "multi30k", "--from", "models/averaged", "--mix", "first", "--force").refusal()
    assert code == 78
    assert "multi30k.yaml comes with the package and stays as it is" in line


def test_a_corpus_that_grew_goes_on_from_the_model_with_its_vocabulary(place: Path, call: Call) -> None:
    entry = place / "corpora/first.yaml"
    for language in ("en", "de"):
        with (place / f"first.{language}").open("a", encoding="utf-8") as file:
            file.write("one more\n")
    assert call("data", "update", "first").code == 0
    before = entry.read_text(encoding="utf-8")
    assert call("data", "tune", "first", "--from", "models/averaged", "--force").code == 0
    params = load_params(place / "params.yaml")
    assert (params.download.corpus, params.train.init_from, params.train.mix) == ("first", "first", None)
    assert entry.read_text(encoding="utf-8") == before


def test_a_corpus_of_symbols_keeps_its_rules_of_cleaning(place: Path, call: Call) -> None:
    assert call("data", "new", "spoken", "first.en", "first.de", "--symbols", "--force").code == 0
    assert call("data", "tune", "spoken", "--from", "models/averaged", "--force").code == 0
    params = load_params(place / "params.yaml")
    assert (params.bpe.type, params.clean.drop_copies, params.clean.max_ratio) == ("symbols", False, None)


def test_a_corpus_of_other_languages_is_not_mixed_in(place: Path, call: Call) -> None:
    before = (place / "params.yaml").read_bytes()
    tune = ("data", "tune", "other", "other.en", "other.de", "--from", "models/averaged", "--force")
    assert call(*tune, "--mix", "icon").refusal() == (78, "--mix: icon has no en. It has id, tree.")
    assert not (place / "corpora/other.yaml").exists()
    assert call(*tune[:2], "first", *tune[3:], "--mix", "icon").code == 78
    assert (place / "corpora/first.yaml").exists()
    assert (place / "params.yaml").read_bytes() == before
    assert not (place / "pretrained").exists()


def test_a_parser_is_refused_and_no_folder_but_a_model_is_replaced(place: Path, call: Call) -> None:
    before, tune = (place / "params.yaml").read_bytes(), ("data", "tune", "icon", "--force", "--from")
    write_drawn(place / "models/parser", target="tree")
    shutil.copytree(place / "models/parser", place / "pretrained/first/forward")
    code, line = call(*tune, "models/parser").refusal()
    assert (code, "writes a tree, no translation" in line) == (78, True)
    code, line = call("data", "tune", "first", "--force", "--from", "models/averaged").refusal()
    assert (code, "pretrained/first: exists, and is no model" in line) == (78, True)
    assert ((place / "pretrained/first/forward/config.json").exists(), (place / "params.yaml").read_bytes()) == (True, before)


def test_a_model_of_convolutions_that_decoded_with_others_is_tuned_alone(place: Path, call: Call) -> None:
    size = resolve(Model(architecture="convolutional", preset="tiny", layers=5))
    searched = recipes.load("tatoeba").decode.model_copy(update={"ensemble": "others", "engine": "torch"})
    write_drawn(place / "models/other", size, decode=searched)
    assert call("data", "tune", "first", "--force", "--from", "models/other").code == 0
    params = load_params(place / "params.yaml")
    assert resolve(params.model).effective() == replace(size, dropout=params.model.dropout).effective()
    assert params.decode.ensemble is None


def test_a_corpus_of_three_languages_without_local_text_is_tuned_on_in_those_of_the_model(place: Path, call: Call) -> None:
    done = call("data", "tune", "multi30k", "--from", "models/averaged", "--force")
    assert (done.code, done.err) == (0, "")
    assert "names 29,000 pairs of en and de; params.yaml trains on them" in done.out
    assert load_params(place / "params.yaml").download.corpus == "multi30k"
