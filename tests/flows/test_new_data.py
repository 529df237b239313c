"""New data of a corpus: what a watcher tells, what a run takes in, and the run that a change starts on a real server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from dvc.repo import Repo
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import FlowRun

from flows.dvc.settings import settings_of_run
from flows.new_data import Versions, file_of, look, taking_in, train_champion_further, versions
from flows.stages import publish
from tests.clone import Clone
from tests.flows.prefect_server import ended, worker_at
from tests.flows.publishing import MANIFEST, before_publish
from tests.flows.stages import set_params
from tests.refusals import refused
from tests.serving import Quiet, serving
from tests.waiting import wait_for
from transformer_core.config import Machine, check_params, load_params
from transformer_core.corpus.sources.catalogue import find_entry, load_entry
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.text import write_pairs
from transformer_core.files import locked, read_json, sha256_of, write_json, write_text

ENTRY, LOCK = Path("corpora/own.yaml"), Path("corpora/own.lock")


class Files(Quiet, SimpleHTTPRequestHandler):
    """The files of a folder, with their times."""


def write_own(pairs: int) -> None:
    write_pairs(Path("own.en"), Path("own.de"), [(f"a house {number}", f"ein Haus {number}") for number in range(pairs)])


@pytest.fixture
def address(mlflow_store: str, monkeypatch: pytest.MonkeyPatch, model_directory: Path) -> Iterator[str]:
    """The address of a text of corpus `own`, which has local files and a teacher of the registry, too; it is that of params.yaml."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    before_publish(model_directory)
    publish.run(load_params())
    write_own(30)
    new_entry("own", Path("own.en"), Path("own.de"), valid=5, test=5)
    set_params(download={"corpus": "own"})
    write_text(Path("served/more.en"), "a dog\n")
    with serving(partial(Files, directory="served")) as host:
        url = f"http://{host}/more.en"
        teacher = "{corpus: own, model: models:/tatoeba-en-de@champion, side: target}"
        added = f"  - https: {{en: {{url: '{url}'}}, de: {{url: '{url}'}}}}\n  - translated: {teacher}\n  valid:"
        ENTRY.write_text(ENTRY.read_text(encoding="utf-8").replace("  valid:", added), encoding="utf-8")
        yield url


def looked() -> tuple[Versions, list[str]]:
    return look(find_entry("own"), Machine())


def test_a_watcher_tells_each_change_once_and_a_run_takes_it_in(address: str) -> None:
    teacher = "models:/tatoeba-en-de@champion"
    _, new = looked()
    assert {"../own.en", "../own.de", address, teacher} <= {*new}  # There was no run.
    with taking_in("own", load_params()) as first:
        assert first == new
    assert looked()[1] == []
    write_json(LOCK, {address: "0" * 64, "another": "1" * 64})
    write_own(31)
    write_text(Path("served/more.en"), "two dogs\n")
    now, new = looked()
    assert new == sorted(["../own.de", "../own.en", address])
    write_json(file_of("own", "told"), now)
    assert looked()[1] == []
    with pytest.raises(KeyError), taking_in("own", load_params()):
        raise KeyError
    with taking_in("own", load_params()) as again:  # The run before failed.
        assert again == new
    assert (load_entry(ENTRY).splits.train[0].files or {})["en"].sha256 == sha256_of(Path("own.en"))
    assert read_json(LOCK) == {"another": "1" * 64}
    with taking_in("own", load_params()) as nothing:
        assert nothing == []


def test_a_file_of_trees_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    splits = "{" + ", ".join(f"{split}: [{{trees: 'bank/*.mrg'}}]" for split in ("train", "valid", "test")) + "}"
    write_text(Path("corpora/bank.yaml"), f"name: bank\nlanguages: [en, tree]\nlicence:\nnote: ''\nsplits: {splits}\n")
    write_text(Path("corpora/bank/a.mrg"), "(S (NN a))\n")
    assert [*versions(find_entry("bank"), Machine(), {})] == ["corpora/bank/a.mrg"]


def test_after_a_run_without_a_watcher_its_files_count_as_taken(address: str) -> None:
    origin = [{"split": "train", "file": f"../own.{side}", "sha256": sha256_of(Path(f"own.{side}"))} for side in ("en", "de")]
    write_json(Path("data/raw/manifest.json"), MANIFEST | {"corpus": "own", "origin": origin})
    assert looked()[1] == []
    write_own(29)
    assert looked()[1] == ["../own.de", "../own.en"]
    Path("own.de").unlink()
    with refused(65, "own.de: no such file"):
        looked()
    assert address


@pytest.mark.usefixtures("address")
def test_the_champion_is_trained_further_with_the_settings_of_a_fine_tuning() -> None:
    document = settings_of_run(None, {"publish.name": "tatoeba-en-de", "clean.max_words": 77})
    Repo.init(no_scm=True)
    write_text(Path("pretrained/own.dvc"), "outs: [{path: own}]")  # As of a model before.
    train_champion_further(document)
    assert "md5" in Path("pretrained/own.dvc").read_text()
    params = check_params(document)
    assert (params.train.init_from, params.bpe.init_from, params.clean.max_words) == ("own", "own", 77)
    assert Path("pretrained/own/model.safetensors").is_file()
    with refused(78, "the new data is of other"), taking_in("other", params):
        pass


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.usefixtures("deployed")
def test_a_change_starts_a_run_and_one_while_it_runs_another_that_waits(prefect: SyncPrefectClient, home: Clone, tmp_path: Path) -> None:
    """About a minute: two runs up to stage clean, the first of which is held back."""
    deployment = prefect.read_deployment_by_name("pipeline/new-data")
    prefect.update_deployment(deployment.id, DeploymentUpdate(parameters={"last_stage": "clean"}))
    home.run("dvc", "repro", "clean")
    home.run(sys.executable, "-m", "flows.watch", "tiny", "--once")
    text = home.root / "corpora/tiny/train.tsv"
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)

    def runs() -> list[FlowRun]:
        return sorted(prefect.read_flow_runs(), key=lambda run: str(run.created))

    def training_pairs() -> int:
        manifest = home.root / "data/raw/manifest.json"  # Which DVC removes before the stage writes it anew.
        return read_json(manifest)["splits"]["train"]["pairs"] if manifest.exists() else 0

    def wait_for_states(*names: str) -> None:
        wait_for(lambda: [run.state_name for run in runs()] == [*names], f"not {names}", pause=0.2)

    watching = [sys.executable, "-m", "flows.watch", "tiny", "--every", "1"]
    with worker_at(home, tmp_path / "worker.log"), (tmp_path / "watch.log").open("wb") as log:
        watcher = subprocess.Popen(watching, cwd=home.root, env={**os.environ, **home.environment}, stdout=log, stderr=log)
        try:
            with locked(home.root / ".state/locks/clean", "the test"):
                text.write_text("".join(lines[:-50]), encoding="utf-8")
                wait_for_states("Running")
                wait_for(lambda: training_pairs() == len(lines) - 50, "the change is not taken in", pause=0.2)
                text.write_text("".join(lines[:-90]), encoding="utf-8")
                wait_for_states("Running", "AwaitingConcurrencySlot")
            states = [ended(prefect, run.id).state for run in runs()]
        finally:
            watcher.terminate()
            watcher.wait()
    assert [state and state.is_completed() for state in states] == [True, True], states
    assert [run.parameters["corpus"] for run in runs()] == ["tiny", "tiny"]
    assert training_pairs() == len(lines) - 90
