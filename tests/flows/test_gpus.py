"""Locks of GPUs, with an `nvidia-smi` that lists some."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.process.gpus import free_gpus, visible_gpus


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], None]) -> None:
    """A machine with three GPUs, one that has failed, and locks of its own."""
    program("nvidia-smi", 'printf "0, GPU-a\\n1, GPU-b\\nUnable to determine the device handle for GPU3\\n2, GPU-c\\n"')
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def visible() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_each_run_has_gpus_of_its_own_and_decoding_all_that_are_left() -> None:
    with free_gpus(1):
        assert visible() == "GPU-a"
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Another process has not this one's.
        with free_gpus():
            assert visible() == "GPU-b,GPU-c"
        os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-a"
    assert visible() is None
    with free_gpus(9):
        assert visible() == "GPU-a,GPU-b,GPU-c"


def test_a_number_and_a_uuid_name_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with free_gpus(1):
        assert visible() == "2"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c,GPU-a")
        with free_gpus():
            assert visible() == "GPU-a"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with free_gpus(1):
        assert visible() == ""


@pytest.mark.parametrize(("chosen", "names"), [("-1", []), ("1,-1,2", ["1"]), ("1, 2,-1", ["1", "2"])])
def test_gpus_are_named_as_for_cuda(monkeypatch: pytest.MonkeyPatch, chosen: str, names: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert list(visible_gpus()) == names


def test_a_run_waits_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = (tmp_path / "transformer-gpu-GPU-b.lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    pauses = iter([bool, bool, other.close])  # The GPU is free after the third.
    monkeypatch.setattr("flows.process.gpus.time", SimpleNamespace(sleep=lambda _: next(pauses)()))
    with free_gpus(3):
        assert other.closed
    assert capsys.readouterr().err == "waiting for 3 of 3 GPUs, of which 2 are free\n"
