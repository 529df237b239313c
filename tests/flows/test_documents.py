"""JSON files of stages with a key that is missing or wrong: one line for each reader, which names the file and the stage to run again."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from flows.compare import known_test_sets
from flows.pipeline import in_registry, trained
from flows.process.paths import MANIFEST, PUBLISHED, SCORES, TRAINING_METRICS
from flows.record.documents import CHECKPOINT_CONFIG, CLEANING, DECODING, MODEL_CONFIG, read_output
from flows.record.journal import Journal
from flows.record.lineage import describe_training
from flows.record.summary import Outcome, summarize, table_of
from flows.record.tasks import PARSING, TRANSLATION, read_scores
from flows.scores import main as scores
from flows.stages import evaluate, publish
from tests.flows.publishing import FIGURES, before_publish
from tests.flows.test_evaluate_stage import lay_out
from tests.refusals import refused
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.errors import ExitCode, UserError
from transformer_core.files import read_json, write_json

MAKERS = {
    MANIFEST: "download",
    CLEANING: "clean",
    TRAINING_METRICS: "train",
    MODEL_CONFIG: "average",
    DECODING: "decode",
    SCORES: "evaluate",
}
PLACES = [
    *((MANIFEST, key) for key in ("corpus", "source", "synthetic", "origin", "splits", "splits.test", "splits.test.pairs")),
    *((MANIFEST, f"splits.valid.files.{key}") for key in ("de", "de.sha256")),
    *((CLEANING, key) for key in ("pairs_in", "lengths_out", "lengths_out.de", "splits.test.repaired.white_space")),
    *((TRAINING_METRICS, key) for key in ("parameters", "minutes", "valid_perplexity")),
    *((MODEL_CONFIG, key) for key in ("training", "training.fingerprint", "training.updates", "vocabulary.size")),
    *((DECODING, key) for key in ("beam", "alpha", "test", "valid.tokens_per_second")),
]
TO_PUBLISH = [
    *((SCORES, key) for key in ("bleu", "corpus", "lines", "references_sha256", "signature", "valid.chrf")),
    (MANIFEST, "splits.train.pairs"),
    (MODEL_CONFIG, "training.fingerprint"),
]
WRONG = [None, "no such value", [1], 10**400]


def damaged(document: dict[str, Any], place: str) -> list[tuple[str, Any]]:
    """The document without the key at a place, and with values of other types there."""
    found = []
    for value in (..., *WRONG):
        copy = deepcopy(document)
        *outer, key = place.split(".")
        inner = copy
        for part in outer:
            inner = inner[part]
        was = inner.pop(key)
        if value is not ...:
            if type(value) is type(was):  # Any text may be a name.
                continue
            inner[key] = value
        found.append(("missing" if value is ... else repr(value), copy))
    return found


def refused_of_each(path: Path, place: str, read: Callable[[], object]) -> None:
    """Damage a file at a place in every way, read it, and look at the refusal."""
    for how, document in damaged(read_json(path), place):
        write_json(path, document)
        with refused(65) as caught:
            read()
        line = str(caught.value)
        assert line.startswith(f"{path}: {place.split('.')[0]}"), (how, line)
        assert line.endswith(f". Make it again with: dvc repro --force --single-item {MAKERS[path]}"), (how, line)
        assert "\n" not in line, how


@pytest.mark.parametrize(("path", "place"), PLACES)
def test_stage_evaluate_refuses_a_wrong_file_of_an_earlier_stage(
    path: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    params = load_params()
    refused_of_each(path, place, lambda: evaluate.run(params))


@pytest.mark.usefixtures("empty_directory")
@pytest.mark.parametrize(("path", "place"), TO_PUBLISH)
def test_stage_publish_refuses_a_wrong_file_of_an_earlier_stage(path: Path, place: str, model_directory: Path) -> None:
    before_publish(model_directory)
    params = load_params()
    refused_of_each(path, place, lambda: publish.run(params))


@pytest.mark.usefixtures("empty_directory")
@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"text"', b"{}", b"{"])
def test_other_json_than_an_object_with_the_keys_is_refused_by_every_reader(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").write_text(recipes.read("synthetic"), encoding="utf-8")
    for path in (MANIFEST, CLEANING, TRAINING_METRICS, CHECKPOINT_CONFIG, DECODING, SCORES, PUBLISHED):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    params, done = load_params(), {"evaluate": Outcome("evaluate", "ran", 0, 1.0)}
    readers: list[Callable[[], object]] = [
        lambda: describe_training(Journal("f00d"), params),
        lambda: summarize(table_of(done, None), done, "", ""),
        lambda: list(known_test_sets()),
        in_registry,
        trained,
        *(lambda task=task: read_scores(task) for task in (TRANSLATION, PARSING)),
        *(lambda path=path: read_output(path) for path in (CLEANING, TRAINING_METRICS, DECODING)),
    ]
    for read in readers:
        with refused(65, r"^\S+\.json: .*\. Make it again with: dvc repro --force --single-item \w+$"):
            read()
    assert scores([]) == ExitCode.BAD_DATA
    assert capsys.readouterr().err.startswith(f"{SCORES}: ")


@pytest.mark.usefixtures("empty_directory")
def test_a_right_file_is_read_as_it_is() -> None:
    write_json(SCORES, {**FIGURES, "another_key": [1]})
    assert json.dumps(read_scores()) == json.dumps({**FIGURES, "another_key": [1]})
    with pytest.raises(UserError, match=r"results/scores\.json: f1: missing\. "):
        read_scores(PARSING)
