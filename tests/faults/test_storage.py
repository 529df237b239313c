"""Stage train on storage that fails, by a library that is loaded before the C library."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.test_train_stage import prepare
from transformer_core.files import sha256_of

ENDED = "models/checkpoints"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc") or sys.platform != "linux":
        pytest.skip("needs gcc and Linux")
    made = tmp_path_factory.mktemp("library") / "storage.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, Path(__file__).with_name("storage.c"), "-ldl"], check=True)
    return made


def train(**fault: object) -> tuple[int, str]:
    environment = {**os.environ, **{name: str(value) for name, value in fault.items()}}
    command = [sys.executable, "-m", "flows.stages", "train"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def weights() -> dict[str, str]:
    return {file.name: sha256_of(file) for file in Path(ENDED).glob("*.safetensors")}


@pytest.mark.slow  # about 60 s: five trainings in processes of their own
@pytest.mark.usefixtures("mlflow_store")
def test_a_training_survives_a_full_disk_and_resumes_after_a_failed_one(library: Path) -> None:
    prepare("bpe", updates=8, save_every=2, validate_every=8)
    assert train()[0] == 0
    expected = weights()
    assert len(expected) > 1
    for number, code, said in (
        (errno.ENOSPC, 0, "the disk is full: the training goes on and tries again at its next save"),
        (errno.EIO, 69, "state-00000004.pt: Input/output error. Run it again to resume."),
    ):
        shutil.rmtree(ENDED)
        shutil.rmtree(".state")
        found, output = train(LD_PRELOAD=library, FAULT_PATH=".state-00000004.pt", FAULT_ERRNO=number, FAULT_TIMES=1)
        assert (found, said in output) == (code, True), output
        if code:
            found, output = train()
            assert (found, "going on after update 2" in output) == (0, True), output
        assert weights() == expected
