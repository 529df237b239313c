"""Damaged files of every reader; and pickles, which can run any code when they are read: none is, whichever file it stands in for."""

import io
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.clone import ROOT
from tests.fuzz.fuzzer import check
from tests.fuzz.model_readers import READERS
from transformer_core.errors import UserError

# Those whose file holds arrays or tensors; the others read JSON or protobuf.
ARRAYS = ("training-state", "model-weights", "tokens", "shortlist")


@pytest.mark.parametrize("numbers", [range(15), pytest.param(range(15, 200), marks=pytest.mark.slow)], ids=["some", "many"])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_words(name: str, numbers: range) -> None:
    check(READERS[name], numbers, seed=1)


class _Planted:
    """When unpickled, it makes the folder "executed" in the working directory."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("executed",)


def _with_torch() -> bytes:
    file = io.BytesIO()
    torch.save({"format": 2, "model": _Planted()}, file)
    return file.getvalue()


def _with_numpy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([_Planted()], dtype=object))
    return file.getvalue()


@pytest.mark.parametrize("planted", [lambda: pickle.dumps(_Planted()), _with_torch, _with_numpy], ids=["pickle", "torch", "numpy"])
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.usefixtures("empty_directory")
def test_a_planted_pickle_is_not_executed(name: str, planted: Callable[[], bytes], tmp_path: Path) -> None:
    with suppress(UserError):  # A planted state is passed over.
        READERS[name].read(planted(), tmp_path)
    assert not Path("executed").exists()


@pytest.mark.usefixtures("empty_directory")
def test_a_planted_pickle_would_be_executed_by_a_careless_reader() -> None:
    with suppress(Exception):
        torch.load(io.BytesIO(_with_torch()), weights_only=False)
    assert Path("executed").exists()


def test_torch_loads_weights_only() -> None:
    files = [file for package in ("transformer_core", "flows") for file in (ROOT / package).rglob("*.py")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if "torch.load(" in line and "weights_only=True" not in line] == []
    assert [line for line in lines if "import pickle" in line or "allow_pickle=True" in line] == []
