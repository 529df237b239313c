import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from flows import translate
from flows.process.paths import AVERAGED, DECODED, PUBLISHED, RAW, REPORT, SCORES, SENTENCES
from flows.record import server
from flows.record.documents import MODEL_CONFIG
from flows.record.registry import stored_hypotheses
from flows.record.run import RunRecord, records
from flows.record.sending import sync
from flows.record.server import PARENT_TAG, experiment_id
from flows.stages import publish
from tests.clone import ROOT
from tests.flows.publishing import FINGERPRINT, LINES, REFERENCES, SCORES_OF_SET, before_publish, points, recorded, set_search, training
from tests.flows.stages import changed
from tests.models.on_disk import translations
from tests.refusals import refused
from transformer_core.config import Params, load_params
from transformer_core.corpus.text import write_lines
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.files import read_json, write_json, write_text


@pytest.fixture
def params(mlflow_store: str, monkeypatch: pytest.MonkeyPatch, model_directory: Path) -> Params:
    """Of the working directory as it is before stage publish."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    before_publish(model_directory)
    return load_params()


KILLED = Mock(side_effect=KeyboardInterrupt)


def trained_here(identity: str = FINGERPRINT) -> RunRecord:
    record = recorded(identity, [3.25])
    record.end()
    return record


@pytest.mark.slow
def test_the_model_is_registered_in_the_run_of_its_training_and_translates_elsewhere(
    params: Params, client: MlflowClient, mlflow_store: str, model_directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """About 15 seconds: a fresh process, which cannot import this repository's packages, loads the model by its alias."""
    trained_here()
    sync(mlflow_store)
    before = training(client)
    client.update_run(before.info.run_id, status="RUNNING")  # As a publish that was killed in its upload leaves it.

    closing = publish.run(params)

    assert len([file for file in Path("mlruns").glob("**/code/**/*") if file.is_file()]) == 2
    after = training(client)
    assert (after.info.run_id, after.info.status, after.info.end_time) == (before.info.run_id, "FINISHED", before.info.end_time)
    assert points(client, "train/loss") == [(1, 3.25)]
    assert closing == "models:/tatoeba-en-de@champion: version 1, the first version"
    decided = {"decision": "champion", "decision_reason": "the first version", "run_id": before.info.run_id}
    assert read_json(PUBLISHED) == {"name": "tatoeba-en-de", "version": "1", **decided, "model_uri": "models:/tatoeba-en-de/1"}
    version = client.get_model_version_by_alias("tatoeba-en-de", "champion")
    assert version.run_id == before.info.run_id
    assert version.tags.items() >= {"bleu": "86.41", "corpus": "tatoeba", "decision": "champion"}.items()
    assert version.description.startswith("BLEU 86.41 on 60 lines of test of tatoeba (`tok:13a`)")
    out, error = capfd.readouterr()
    assert out.startswith(f"BLEU 86.41 on the test set of tatoeba\nreport: {REPORT}\n")
    assert f"/runs/{before.info.run_id}" in out
    assert error == ""

    lines = ["A man is riding a bike.", "", "Two dogs are running."]
    asked: list[dict[str, Any]] = [{}, {"beam": 1}, {"beam": 2, "alpha": 1.0}]
    translator = Translator.load(model_directory)
    wanted = [translations(translator, lines, Search(**parameters)) for parameters in asked]
    by_torch = [{**parameters, "engine": "torch"} for parameters in asked]
    code = f"""
import json, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
import mlflow
model = mlflow.pyfunc.load_model("models:/tatoeba-en-de@champion")
print("SAID" + json.dumps([model.predict({lines!r}, params=parameters) for parameters in {by_torch!r}]))
import transformer_core
assert "{ROOT}/transformer_core" not in transformer_core.__file__, transformer_core.__file__
"""
    Path("elsewhere").mkdir()
    environment = {**os.environ, "MLFLOW_TRACKING_URI": mlflow_store, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd="elsewhere", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.split("SAID")[1]) == [[hypotheses[0].text for hypotheses in result] for result in wanted]


def test_a_file_is_translated_with_the_published_search_unless_options_say_otherwise(model_directory: Path, params: Params) -> None:
    """A parser's trees need more tokens than `translate` allows of its own accord."""
    set_search(AVERAGED, beam=2, max_extra=3)
    publish.run(params)
    Path("in.en").write_text("".join(f"{line}\n" for line in LINES[:4]), encoding="utf-8")
    command = ["tatoeba-en-de/1", "in.en", "--engine", "torch", "--out", "out.de"]
    translator = Translator.load(model_directory)
    for options, search in (((), Search(2, max_extra=3)), (("--max-extra", "20", "--beam", "1"), Search(1, max_extra=20))):
        assert translate.main([*command, *options]) == 0
        wanted = [ranked[0].text for ranked in translations(translator, LINES[:4], search)]
        assert Path("out.de").read_text(encoding="utf-8").split("\n")[:-1] == wanted
    Path("params.yaml").unlink()  # $MLFLOW_TRACKING_URI names the registry, too.
    assert translate.main(command) == 0


def test_a_further_test_set_has_its_outputs_tags_and_champion(params: Params, client: MlflowClient) -> None:
    scores = read_json(SCORES)
    write_json(SCORES, scores | {"tests": {"test_news": SCORES_OF_SET | {"lines": 60}}})
    shutil.copyfile(RAW / "test.de", RAW / "test_news.de")
    shutil.copyfile(DECODED / "test.hyp", DECODED / "test_news.hyp")
    publish.run(params)
    version = client.get_model_version_by_alias("tatoeba-en-de", "champion-news")
    assert version.tags.items() >= {"bleu": "86.41", "bleu.test_news": "90.0", "decision.test_news": "champion-news"}.items()
    assert stored_hypotheses(client, version, "test_news") == REFERENCES


def test_other_outputs_are_the_next_version_under_the_same_alias(params: Params, client: MlflowClient) -> None:
    assert publish.run(params).startswith("models:/tatoeba-en-de@champion: version 1, ")
    write_lines(DECODED / "test.hyp", [*REFERENCES[:-1], "Der 60. Hund läuft."])
    assert publish.run(params).startswith("models:/tatoeba-en-de@champion: version 2, not significantly different from version 1")
    # The first is no longer the champion, so its description and its commands do not call it that.
    first = client.get_model_version("tatoeba-en-de", "1").description
    assert "Became `champion` when it was published: the first version." in first
    assert "flows.translate tatoeba-en-de/1 " in first
    assert read_json(PUBLISHED)["model_uri"] == "models:/tatoeba-en-de/2"
    write_lines(DECODED / "test.hyp", REFERENCES)
    assert publish.run(params) == "models:/tatoeba-en-de@champion: version 1, the first version"  # As it was published.
    assert str(client.get_model_version_by_alias("tatoeba-en-de", "champion").version) == "2"
    assert len(client.search_model_versions("name = 'tatoeba-en-de'")) == 2
    assert points(client, "bleu") == [(0, 86.41)]


@pytest.mark.parametrize("killed_in", ["register", "decide", "card", pytest.param("write_json", marks=pytest.mark.slow), ""])
def test_a_killed_publish_uploads_only_once(killed_in: str, params: Params, client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_here()
    with monkeypatch.context() as patch:
        if killed_in:
            patch.setattr(publish, killed_in, KILLED)
            with pytest.raises(KeyboardInterrupt):
                publish.run(params)
        else:
            publish.run(params)
    monkeypatch.setattr(publish, "log_model", KILLED)
    assert publish.run(params) == "models:/tatoeba-en-de@champion: version 1, the first version"
    assert len(client.search_model_versions("name = 'tatoeba-en-de'")) == 1
    assert len(client.search_logged_models([experiment_id(client)])) == 1
    assert client.get_registered_model("tatoeba-en-de").aliases.keys() == {"champion"}
    assert training(client).info.status == "FINISHED"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_of_two_trainings_with_one_fingerprint_the_model_names_its_own(elsewhere: bool, params: Params, client: MlflowClient) -> None:
    """As after train.updates was changed and changed back, or in two clones with one record. One from elsewhere is made from tables."""
    trained_here("0aaa")
    trained_here("0bbb")
    identity = "c0ffee" if elsewhere else "0aaa"
    config = read_json(MODEL_CONFIG)
    write_json(MODEL_CONFIG, {**config, "training": {**config["training"], "run": identity}})
    RunRecord(id="evaluation-1", parent=identity).end()
    publish.run(params)
    run = client.get_run(read_json(PUBLISHED)["run_id"])
    assert run.data.tags["record"] == identity
    assert [point.value for point in client.get_metric_history(run.info.run_id, "train/loss")] == ([3.5, 3.0, 2.5] if elsewhere else [3.25])
    (evaluation,) = server.search(client, f"tags.`{PARENT_TAG}` = '{run.info.run_id}'")
    assert evaluation.data.tags["record"] == "evaluation-1"
    assert len(server.search(client, f"tags.fingerprint = '{FINGERPRINT}'")) == (3 if elsewhere else 2)


def test_a_damaged_record_of_another_run_keeps_no_model_from_the_registry(params: Params, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(Path("x"), "")
    trained_here("0aaa").attach_files([Path("x")])
    (records() / "0aaa/run.json").write_text("{")
    assert publish.run(params).startswith("models:/tatoeba-en-de@champion: version 1")
    assert "A record was not sent: .state/record/0aaa/run.json: not valid JSON" in capfd.readouterr().err


def test_an_experiment_is_recorded_but_not_registered(params: Params, client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "dry-nibs")
    assert publish.run(params).endswith("To register it: dvc exp apply dry-nibs && dvc repro --force --single-item publish")
    run = training(client)
    assert read_json(PUBLISHED) == {"name": "tatoeba-en-de", "experiment": "dry-nibs", "run_id": run.info.run_id}
    assert run.data.metrics["bleu"] == 86.41
    assert client.search_registered_models() == []
    assert not list(Path("mlruns").rglob("model.safetensors"))
    monkeypatch.delenv("DVC_EXP_NAME")
    assert publish.run(params) == "models:/tatoeba-en-de@champion: version 1, the first version"


def test_an_ensemble_has_a_record_and_registers_none_of_its_models(params: Params, client: MlflowClient) -> None:
    assert publish.run(changed(params, "decode", ensemble="seeds")).endswith("none of them is registered")
    assert training(client).data.metrics["bleu"] == 86.41
    assert client.search_registered_models() == []


def test_a_training_from_the_cache_gets_its_run_from_its_tables_once(params: Params, client: MlflowClient) -> None:
    for _ in range(2):
        publish.run(params)
        shutil.rmtree(records())  # As docs/mlflow.md permits.
    assert len(client.search_runs([experiment_id(client)])) == 1
    assert points(client, "train/loss") == [(1, 3.5), (2, 3.0), (3, 2.5)]
    assert points(client, "valid/nll") == [(3, 2.75)]
    assert points(client, "valid/bleu") == [(3, 12.5)]
    run = training(client)
    assert run.data.params["train.warmup"] == str(params.train.warmup)
    assert (run.data.tags["filled_from"], run.info.status) == ("results/training", "FINISHED")


def test_outputs_of_another_corpus_and_a_missing_page_are_told_before_anything_is_in_mlflow(params: Params, client: MlflowClient) -> None:
    with refused(78, "data/raw: holds tatoeba from en to de, but section download names multi30k from en to de"):
        publish.run(changed(params, "download", corpus="multi30k"))
    SENTENCES.unlink()
    with refused(65, r"results/sentences\.html: no such file\. Make it with: dvc repro evaluate"):
        publish.run(params)
    assert client.search_runs([experiment_id(client)]) == []


def test_the_requirements_are_what_pip_takes() -> None:
    assert all("+" not in line and line.count("==") == 1 for line in publish.requirements())
