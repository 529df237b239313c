"""The exchange of outputs with the DVC remote, in a repository of two stages."""

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import md5
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.process.repro import NOT_CACHED, dvc, failure, main
from tests.mounts import MOUNTING, need_mounts

STAGES = """
stages:
  one: {cmd: cp in/a one.txt, deps: [in], outs: [one.txt]}
  two: {cmd: cat one.txt mid/a > two.txt, deps: [one.txt, mid], outs: [two.txt]}
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository after a run of both stages; its remote is the folder store."""
    folder = tmp_path_factory.mktemp("repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        subprocess.run(["git", "init", "-q"], check=True)
        Repo.init()
        Path(".dvc/config").write_text("[core]\n    remote = store\n['remote \"store\"']\n    url = ../store\n")
        for name in ("in", "mid"):
            Path(name).mkdir()
            Path(name, "a").write_text(name)
        run(STAGES)
    return folder


@pytest.fixture(autouse=True)
def done(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it as the working directory."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)


def run(stages: str) -> None:
    """Run stages, which become those of the repository."""
    Path("dvc.yaml").write_text(stages)
    with Repo() as repo:
        repo.reproduce()


def lose(*outputs: str) -> None:
    """Remove outputs, their record and the cache, so that the remote alone has them."""
    for output in map(Path, outputs):
        shutil.rmtree(output) if output.is_dir() else output.unlink()
    Path("dvc.lock").unlink()
    shutil.rmtree(".dvc/cache")


def test_a_missing_input_is_named_and_the_remote_is_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", "one", "two"]) == 0
    for folder, stage in (("in", "one"), ("mid", "two")):
        shutil.move(folder, "away")
        capsys.readouterr()
        assert main(["restore", "one", "two"]) == 78
        remedy = "Restore it with dvc pull or git checkout. If it is in neither: dvc add or git add it, then push."
        assert capsys.readouterr().err == f"{folder}: no such file or folder here, and stage {stage} depends on it. {remedy}\n"
        shutil.move("away", folder)


def test_outputs_come_back_from_the_remote() -> None:
    assert main(["push", "one", "two"]) == 0
    lose("one.txt", "two.txt")
    assert main(["restore", "one", "two"]) == 0
    assert Path("two.txt").read_text() == "inmid"


@pytest.mark.parametrize("lost", ["files/md5/??/*.dir", "files/md5/??/{of_a_folder}", "files/md5/??/{of_a_file}", "runs/??/*/*"])
def test_a_download_that_fails_is_worth_another_try_and_no_stage_runs(lost: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("stages:\n  one: {cmd: mkdir out && cp in/a out && echo b > b, deps: [in], outs: [out, b]}")
    assert main(["push", "one"]) == 0
    names = {"of_a_folder": md5(b"in").hexdigest()[2:], "of_a_file": md5(b"b\n").hexdigest()[2:]}
    lose("out", "b")
    files = list(Path("store").glob(lost.format(**names)))
    assert files
    for file in files:  # Root can read any file, but no folder, and no link to itself.
        file.rename(f"{file.name}.away")
        file.symlink_to(file) if lost.startswith("runs") else file.mkdir()
    assert main(["restore", "one"]) == 69
    # DVC raises some errors of a download, and only logs others.
    found = re.search(
        r"one: the DVC remote has its outputs, but \w+(\.dir)? could not be downloaded|the DVC remote is unreachable: ",
        capsys.readouterr().err,
    )
    assert found
    assert not Path("out").exists()
    for file in files:
        file.unlink() if lost.startswith("runs") else file.rmdir()
        Path(f"{file.name}.away").rename(file)
    assert main(["restore", "one"]) == 0
    assert (Path("out/a").read_text(), Path("b").read_text()) == ("in", "b\n")


@pytest.mark.parametrize(("folder", "limit"), [(".dvc/cache", "size=64k"), (".dvc/cache", "nr_inodes=6"), ("out", "size=64k")])
def test_a_disk_that_is_full_here_is_not_blamed_on_the_remote(folder: str, limit: str) -> None:
    """DVC only logs that it could not write to its cache, suppresses that it could make no folder there, names no reason of an output."""
    need_mounts()
    run("stages:\n  one: {cmd: mkdir -p out && head -c 100000 /dev/zero > out/a, deps: [in], outs: [out]}")
    assert main(["push", "one"]) == 0
    lose("out")
    Path(folder).mkdir()
    restore = f"mount -t tmpfs -o {limit} tmpfs {folder} && {sys.executable} -m flows.process.repro restore one"
    done = subprocess.run([*MOUNTING, "sh", "-c", restore], check=False, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(rf"repro: No space left on device: .*/{folder}/.*\. Free space or permit writing, then run it again\.", last)
    assert done.returncode == 78


def test_outputs_that_the_remote_has_lost_are_in_no_run_cache() -> None:
    """Otherwise no try would make them again."""
    assert main(["push", "one"]) == 0
    lose("one.txt")
    shutil.rmtree("store/files")
    assert main(["restore", "one"]) == NOT_CACHED


def test_a_stage_with_an_output_out_of_the_cache_cannot_be_restored_elsewhere() -> None:
    """DVC 3.67: the reason why git keeps none of the results. If it fails, results/metrics.json may be `cache: false`."""
    run(STAGES.replace("outs: [two.txt]", "metrics: [two.txt: {cache: false}]"))
    assert main(["push", "one", "two"]) == 0
    lose("one.txt", "two.txt")
    assert main(["restore", "one"]) == 0
    assert main(["restore", "two"]) == NOT_CACHED


def test_a_stage_that_another_dvc_command_runs_is_worth_another_try(capsys: pytest.CaptureFixture[str]) -> None:
    """DVC's record has this process, which runs, as the writer of the stage's output; `--wait-for-lock` does not wait for that."""
    writer = {"pid": os.getpid(), "cmd": "dvc repro"}
    Path(".dvc/tmp/rwlock").write_text(json.dumps({"write": {str(Path("one.txt").resolve()): writer}, "read": {}}))
    ended = subprocess.run(dvc("repro", "--force", "one"), check=False, capture_output=True, text=True)
    busy = "another DVC command runs a stage in this repository. Wait until it ends, then run again."
    assert failure("one", ended.returncode, ended.stderr.splitlines()[-1]) == (69, f"one: {busy}")
    Path("one.txt").unlink()
    assert main(["restore", "one"]) == 69
    assert capsys.readouterr().err == f"{busy}\n"
