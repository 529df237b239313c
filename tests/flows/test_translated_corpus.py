"""Stage download for a corpus that a model makes in part: with a model of the registry, and seen by DVC."""

import shutil
from pathlib import Path

import pytest

from flows.process.paths import LOCAL_FILES, RAW
from flows.stages import clean, publish
from tests.flows.publishing import LINES, before_publish
from tests.flows.stages import set_params, stage_here
from transformer_core.config import load_params
from transformer_core.corpus.sources.local_corpus import new_entry, update_entry
from transformer_core.corpus.text import write_pairs
from transformer_core.files import read_json, write_json, write_text

TEXTS = [f"{line} {number}" for number in range(30) for line in LINES[:2]]


def write_entries(model: str, settings: str = "") -> None:
    """Corpus `own`, and `student`, whose text is that of `own` twice: by people, and with the target by a model."""
    write_pairs(Path("own.en"), Path("own.de"), [(text, text.upper()) for text in TEXTS])
    new_entry("own", Path("own.en"), Path("own.de"), valid=5, test=5)
    own = Path("corpora/own.yaml").read_text(encoding="utf-8").replace("name: own", "name: student")
    source = f"  - translated: {{corpus: own, model: {model}, side: target, beam: 2}}\n{settings}"
    Path("corpora/student.yaml").write_text(own.replace("  valid:", f"{source}  valid:"), encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_directory: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_directory, tmp_path / "pretrained/teacher")
    write_entries("../pretrained/teacher")
    set_params(download={"corpus": "student"})
    return tmp_path


def test_a_mistake_is_one_line_and_leaves_no_output(place: Path) -> None:
    for model, settings, message in (
        ("../models/averaged", "", "models/averaged is an output of this pipeline. Copy it first, for example: cp -r models/"),
        ("../pretrained/teacher", "    tag: <ft>\n", "tags that are not in bpe.user_symbols: <ft>. Add them there in params.yaml"),
    ):
        write_entries(model, settings)
        ended = stage_here("download", code=78)
        assert (ended.stderr.count("\n"), message in ended.stderr) == (1, True), ended.stderr
        assert not list(place.glob("data/*"))


def test_the_model_may_be_one_of_the_registry(mlflow_store: str, monkeypatch: pytest.MonkeyPatch, model_directory: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    before_publish(model_directory)
    publish.run(load_params())
    shutil.rmtree("data")
    write_entries("models:/tatoeba-en-de@champion")
    set_params(download={"corpus": "student"})
    stage_here("download", code=0)
    by_registry = {path.name: path.read_bytes() for path in RAW.iterdir()}
    locked = read_json(Path("corpora/student.lock"))
    assert [*locked] == ["models:/tatoeba-en-de@champion"]
    write_entries(str(model_directory))
    for corpus in ("own", "student", "another"):
        write_text(Path(".state/downloads") / corpus / "00000000-train.en", "as it was fetched")
    stage_here("download", code=0)
    assert [path.name for path in Path(".state/downloads").iterdir()] == ["another"]
    assert {name for name, content in by_registry.items() if content != (RAW / name).read_bytes()} == {"manifest.json"}
    made = read_json(RAW / "manifest.json")["origin"][-1]
    assert (made["model"], made["sha256"]) == (str(model_directory), locked["models:/tatoeba-en-de@champion"])


def test_the_pairs_that_two_models_find_worst_are_dropped(place: Path, model_directory: Path) -> None:
    backward = shutil.copytree(model_directory, place / "pretrained/both/backward")
    shutil.copytree(model_directory, place / "pretrained/both/forward")
    write_json(backward / "config.json", read_json(backward / "config.json") | {"source": "de", "target": "en"})
    set_params(download={"corpus": "own"}, clean={"drop_worst": 0.2, "score_by": "both", "drop_overlap": False})
    stage_here("download", code=0)
    assert "data/clean: 48 of 60 training pairs (dropped: low_score 12)" in stage_here("clean", code=0).stdout
    assert list(clean.SHARDS.iterdir())  # With which the stage starts again where it was stopped.


def test_a_change_of_the_model_is_refused_and_dvc_sees_it_by_a_link(place: Path) -> None:
    stage_here("download", code=0)
    stage_here("local_files", code=0)
    config = place / "pretrained/teacher/config.json"
    assert config in [link.resolve() for link in LOCAL_FILES.iterdir()]
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    message = "student.yaml: ../pretrained/teacher has changed since data/raw was made. Make it again: dvc repro --force download\n"
    assert message in stage_here("local_files", code=65).stderr


@pytest.mark.usefixtures("place")
def test_text_that_another_entry_has_updated_is_accepted() -> None:
    """An entry whose only own text is that of valid and test."""
    text = Path("corpora/student.yaml").read_text(encoding="utf-8")
    head, translated = text.split("  train:")[0], next(line for line in text.split("\n") if "translated" in line)
    dev = "[{files: {en: {path: ../dev.en}, de: {path: ../dev.de}}}]"
    write_text(Path("corpora/student.yaml"), f"{head}  train:\n{translated}\n  valid: {dev}\n  test: {dev}\n")
    write_pairs(Path("dev.en"), Path("dev.de"), [("a house", "ein Haus")])
    stage_here("download", code=0)
    write_pairs(Path("own.en"), Path("own.de"), [(text, text.upper()) for text in TEXTS[:-1]])
    assert "own.en: wrong sha256" in stage_here("local_files").stderr
    update_entry("own")
    assert stage_here("local_files", code=0).stderr == ""
