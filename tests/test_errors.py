import errno
import os
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tests.refusals import refused
from transformer_core.errors import UserError, first_line, machine_errors, without_logins, writing
from transformer_core.files import new_directory, new_file


@pytest.mark.parametrize(("others_gib", "code"), [(70, 69), (1, 78)])
def test_a_gpu_whose_memory_others_use_is_worth_another_try(others_gib: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (0 if gpu == 3 else 80 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: 80 - others_gib << 30 if gpu == 3 else 0)
    with refused(code), machine_errors("train", ""):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB")


def test_memory_that_runs_out_in_a_capture_is_told_whatever_its_end_says() -> None:
    with refused(78, "out of memory"), machine_errors("train", ""):
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


FREE = "Free space or permit writing, then run it again."
RESUME = "Run it again to resume."
ECC, LAUNCH = "uncorrectable ECC error", "unspecified launch failure"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 78, "out of memory. Lower the beam."),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 78, "out of memory. Lower the beam."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), 78, "out of memory. Lower the beam."),
        (OSError(12, "Cannot allocate memory"), 78, "out of memory. Lower the beam."),
        (torch.AcceleratorError(f"CUDA error: {LAUNCH}\nSearch for it"), 69, f"the GPU failed ({LAUNCH}). {RESUME}"),
        (torch.distributed.DistBackendError(f"NCCL error: Cuda failure '{ECC} encountered'"), 69, f"the GPU failed ({ECC})"),
        (RuntimeError("Triton Error [CUDA]: hardware stack error"), 69, f"the GPU failed (hardware stack error). {RESUME}"),
        (OSError(28, "No space left on device", "models/a"), 78, f"No space left on device: models/a. {FREE}"),
        (OSError(30, "Read-only file system", "data"), 78, f"Read-only file system: data. {FREE}"),
        (OSError(28, "No space left on device", "a.model", None, "b.model"), 78, f"No space left on device: b.model. {FREE}"),
        (OSError(122, "Disk quota exceeded"), 78, f"Disk quota exceeded. {FREE}"),
        (OSError("56251 requested and 12224 written"), 78, f"written only in part. {FREE}"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 78, f"No space left on device. {FREE}"),
        (SafetensorError("I/O error: Input/output error (os error 5)"), 69, f"Input/output error. {RESUME}"),
        (RuntimeError("[enforce fail] write: No space left on device (28)"), 78, f"No space left on device. {FREE}"),
        *(
            (OSError(number, os.strerror(number), "state.pt"), 69, f"state.pt: {os.strerror(number)}. {RESUME}")
            for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.ENOTCONN, errno.ECONNRESET)
        ),
    ],
)
def test_a_fault_of_the_machine_is_one_line_and_its_code_says_whether_to_try_again(error: Exception, code: int, line: str) -> None:
    with refused(code) as caught, machine_errors("train", "Lower the beam."):
        raise error
    assert str(caught.value).startswith(f"train: {line}")


@pytest.mark.parametrize("length", [1, 1_000])  # Its errors differ.
def test_a_full_disk_under_a_file_of_torch_is_one_line(length: int) -> None:
    with refused(78) as caught, machine_errors("train", ""), writing("state.pt"):
        torch.save(torch.zeros(length), "/dev/full")
    assert str(caught.value) == "train: written only in part: state.pt. Free space or permit writing, then run it again."


@pytest.mark.parametrize("new", [new_file, new_directory])
def test_a_full_disk_under_an_open_file_names_the_file(new: Callable[[Path], AbstractContextManager[Path]], tmp_path: Path) -> None:
    path = tmp_path / "models"
    with refused(78) as caught, machine_errors("train", ""), new(path):
        raise OSError(28, "No space left on device")
    assert str(caught.value).startswith(f"train: No space left on device: {path}. Free space")


def test_a_path_that_is_something_else_is_one_line_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for action, path, fault in (
        (lambda: (tmp_path / "file/below").read_text(encoding="utf-8"), "file/below", "Not a directory"),
        (lambda: (tmp_path / "file").replace(tmp_path / "folder"), "folder", "Is a directory"),
    ):
        with pytest.raises(UserError) as caught, machine_errors("translate", ""):
            action()
        assert str(caught.value) == f"translate: {tmp_path / path}: {fault}. Name another path, or change its permissions."


@pytest.mark.parametrize("error", [torch.AcceleratorError("CUDA error: invalid argument"), RuntimeError("shape"), OSError("odd")])
def test_another_error_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)), machine_errors("decode", ""):
        raise error


def test_an_error_reads_as_one_line_of_fault_and_remedy() -> None:
    assert str(UserError("a.txt:3: not valid UTF-8", "Re-encode it.")) == "a.txt:3: not valid UTF-8. Re-encode it."
    assert str(UserError("It failed.", "Try again.")) == "It failed. Try again."
    assert str(UserError("a.txt: no such file")) == "a.txt: no such file"


@pytest.mark.parametrize(
    ("quoted", "shown"),
    [
        ("a\x1b[31mb\x00\u2028\udcff", r"a\x1b[31mb\x00\u2028\udcff"),
        ("Süßes 日本 ✓", "Süßes 日本 ✓"),
        ("x" * 5_000, "x" * 1_000 + "..." + "x" * 1_000),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_a_message_holds_nothing_that_a_terminal_obeys(quoted: str, shown: str) -> None:
    error = UserError(quoted, quoted)
    assert (error.message, error.remedy) == (shown, shown)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:secret@host:5000/path", "http://host:5000/path"),
        ("https://token@host", "https://host"),
        ("http://me:s@cret@host", "http://host"),
        ("postgresql+psycopg://me:se/cret@host/mlflow", "postgresql+psycopg://host/mlflow"),
        ("http://a:b@host:8080/a?b and http://t0ken@other", "http://host:8080/a?b and http://other"),
        ("a@b.c http://x/y@z", "a@b.c http://x/y@z"),
        ("ssh://git@host/repository", "ssh://git@host/repository"),
        ("http://127.0.0.1:5000/#/models/name@champion", "http://127.0.0.1:5000/#/models/name@champion"),
        ("models:/name@champion, sqlite:///folder/mlflow.db", "models:/name@champion, sqlite:///folder/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_its_login(address: str, shown: str) -> None:
    assert without_logins(address) == shown
    assert first_line(OSError(f"{address} is unreachable\nmore")) == f"{shown} is unreachable"
    error = UserError(f"{address} is unreachable", f"Start {address}")
    assert str(error) == f"{shown} is unreachable. Start {shown}"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.remedy, copy.exit_code) == (error.message, error.remedy, error.exit_code)
    assert "secret" not in repr(error)
