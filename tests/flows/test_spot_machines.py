"""Spot machines: notices, and states on a real S3-compatible server, from which another machine goes on."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import requests
import s3fs
import torch
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from flows.process import notices
from flows.process.paths import CHECKPOINTS, UPDATES
from tests.flows.stages import stage_here
from tests.flows.test_train_stage import prepare
from tests.refusals import refused
from tests.serving import Quiet, serving
from transformer_core.files import read_numbers
from transformer_core.training.checkpoint import StateDirectory, remove_training, state_files, update_of
from transformer_core.training.store import store_of

ROOT = "s3://bucket/states"
NAME = "0123456789abcdef"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """A server with an empty bucket, in which states are kept."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    requests.post(f"{address}/moto-api/reset", timeout=60)  # What it keeps is of the process.
    login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (login | {"AWS_ENDPOINT_URL": address, "AWS_MAX_ATTEMPTS": "1", "TRANSFORMER_STATE": ROOT}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield server
    server.stop()


def states_of(folder: Path) -> StateDirectory:
    return StateDirectory(folder / NAME, 2, store_of(folder / NAME))


def saved(folder: Path, *updates: int) -> StateDirectory:
    """A training in a folder that has saved after these updates."""
    states = states_of(folder)
    states.claim()
    for update in updates:
        states.save(update, {"weight": torch.full((1_000,), float(update))})
        states.save_checkpoint(update, {"weight": torch.ones(1)})
        states.wait()
    return states


class Cloud(Quiet):
    """The metadata of all three clouds; `notice` is asked whether there is one."""

    @staticmethod
    def notice() -> bool:
        return True

    def do_PUT(self) -> None:
        self.answer("token" if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else None)

    def do_GET(self) -> None:
        there, path = self.notice(), self.path.partition("?")[0]
        if path == "/latest/meta-data/spot/instance-action":
            self.answer('{"action": "terminate"}' if there and self.headers["X-aws-ec2-metadata-token"] == "token" else None)
        elif path == "/computeMetadata/v1/instance/preempted":
            self.answer(str(there).upper() if self.headers["Metadata-Flavor"] == "Google" else None)
        elif self.headers["Metadata"] == "true":
            preempted = {"EventType": "Preempt", "Resources": ["mine" if there else "another"]}
            events = [preempted, {"EventType": "Reboot", "Resources": ["mine"]}]
            self.answer("mine" if path.endswith("/name") else json.dumps({"Events": events}))

    def answer(self, text: str | None) -> None:
        self.reply(404 if text is None else 200, (text or "").encode())


@pytest.mark.parametrize("named", ["aws", "gcp", "azure", "./notice"])
def test_a_notice_comes_as_a_signal_and_none_comes_without_it(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notices, "_SECONDS", 0.05)
    asked, told, signalled = threading.Semaphore(0), threading.Event(), threading.Event()

    def notice() -> bool:
        asked.release()
        return told.is_set()

    monkeypatch.setattr(Cloud, "notice", staticmethod(notice))
    before = signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
    try:
        with serving(Cloud) as address:
            monkeypatch.setenv(notices.METADATA, f"http://{address}")
            monkeypatch.setenv(notices.NOTICE, named)
            with notices.watched():
                if "/" not in named:
                    assert asked.acquire(timeout=60)
                    assert asked.acquire(timeout=60)
                assert not signalled.is_set()
                told.set()
                (tmp_path / "notice").touch()
                assert signalled.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_notice_of_an_unknown_cloud_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notices.NOTICE, "asw")
    with refused(78, "TRANSFORMER_NOTICE: asw: not known. Name aws, gcp, azure, or the path of a file"), notices.watched():
        pass


@pytest.mark.usefixtures("s3", "mlflow_store")
def test_a_training_on_a_notice_saves_ends_with_75_and_goes_on_in_another_folder_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("bpe", updates=200, save_every=10, validate_every=100)
    straight, second = tmp_path / "straight", tmp_path / "second"
    for other in (straight, second):
        copytree(tmp_path, other, ignore=ignore_patterns("straight"))
    monkeypatch.setattr(Cloud, "notice", staticmethod(lambda: bool(state_files(next((tmp_path / ".state").glob("*[0-9a-f]"), tmp_path)))))
    monkeypatch.setattr(notices, "_SECONDS", 0.1)
    with serving(Cloud) as address, monkeypatch.context() as patch:
        patch.setenv(notices.NOTICE, "aws")
        patch.setenv(notices.METADATA, f"http://{address}")
        assert "notice of aws" in stage_here("train", code=75).stderr
    monkeypatch.chdir(second)
    assert "going on after update " in stage_here("train", code=0).stderr
    monkeypatch.chdir(straight)
    monkeypatch.delenv("TRANSFORMER_STATE")
    stage_here("train", code=0)
    ours, theirs = ({file.name: file.read_bytes() for file in (folder / CHECKPOINTS).glob("*.s*")} for folder in (second, straight))
    assert ours == theirs
    tables = [[(row["update"], row["loss"]) for row in read_numbers(folder / UPDATES)] for folder in (second, straight)]
    assert tables[0] == tables[1]  # With the rows of the first machine.


@pytest.mark.usefixtures("s3")
def test_the_newest_whole_state_of_the_store_wins_and_old_ones_are_pruned(tmp_path: Path) -> None:
    saved(tmp_path / "first", 10, 20, 30)
    files, root = s3fs.S3FileSystem(use_listings_cache=False), f"bucket/states/{NAME}"
    names = {path.removeprefix(f"{root}/") for path in files.find(root)}
    kept = {f"state-000000{update}.{kind}" for update in (20, 30) for kind in ("pt", "sha256")}
    assert names == kept | {f"checkpoints/update-000000{update}.safetensors" for update in (20, 30)} | {"writer-000001"}

    def fetched(folder: str, after: int = -1) -> list[int]:
        state, store = tmp_path / folder / NAME, store_of(tmp_path / folder / NAME)
        state.mkdir(parents=True)
        assert store is not None
        total = store.newest_state(state, after)
        assert not list(states_of(tmp_path / folder).states())  # Until its sum is there.
        if total:
            store.fetch(total, state / total)
        return [read["update"] for read in states_of(tmp_path / folder).states()]

    assert fetched("whole") == [30]
    assert fetched("as late", after=30) == []
    files.pipe_file(f"{root}/state-00000030.pt", files.cat_file(f"{root}/state-00000030.pt")[:-1])
    assert fetched("damaged") == [20]
    files.rm_file(f"{root}/state-00000030.sha256")  # As if the machine was lost between the two.
    assert fetched("half") == [20]
    remove_training(tmp_path / "first" / NAME)
    assert files.find(root) == []


@pytest.mark.usefixtures("s3")
def test_a_writer_sends_nothing_after_another_has_begun(tmp_path: Path) -> None:
    first = saved(tmp_path / "first", 10)
    saved(tmp_path / "second", 10)
    with refused(69, "process .+ on .+ since .+ trains this"):
        first.save(20, {})
        first.wait()
    assert [update_of(file) for file in state_files(tmp_path / "second" / NAME)] == [10]
    assert "state-00000020.pt" not in " ".join(s3fs.S3FileSystem(use_listings_cache=False).find("bucket"))


def test_a_store_that_is_away_costs_no_training_and_gets_the_states_with_a_later_save(s3: ThreadedMotoServer, tmp_path: Path) -> None:
    states = saved(tmp_path, 10)
    port = s3.get_host_and_port()[1]
    s3.stop()
    states.save(20, {})
    with refused(69, "bucket/states/.+, the last save has failed. Free space or reach the store"):
        states.wait()
    again = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    again.start()
    try:
        states.save(30, {})
        states.wait()
        assert f"bucket/states/{NAME}/state-00000030.sha256" in s3fs.S3FileSystem(use_listings_cache=False).find("bucket")
    finally:
        again.stop()


@pytest.mark.usefixtures("s3")
def test_an_address_that_holds_no_states_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root, line in (("gs://bucket/a", "gs://bucket/a: not an address of S3"), ("s3://none/a", "no such bucket. Create it")):
        monkeypatch.setenv("TRANSFORMER_STATE", root)
        with refused(78, line):
            saved(tmp_path)
