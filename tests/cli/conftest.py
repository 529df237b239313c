"""Model directories with random weights, and the command line called as a function."""

import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.models.on_disk import VOCAB, write_model
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.cli import main
from transformer_core.models.architectures import build
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize

# The program as a user starts it.
COMMAND = Path(sys.executable).with_name("transformer-core")
SIZE = TransformerSize(layers=2, d_model=16, d_ff=16, heads=2, d_k=8, d_v=8, dropout=0.0)
SIZES: dict[str, ModelSize] = {
    "transformer": SIZE,
    "learned": replace(SIZE, positions="learned", most_positions=6),
    "recurrent": RecurrentSize(layers=1, d_model=16, dropout=0.0),
    "convolutional": ConvolutionalSize(layers=1, d_model=16, dropout=0.0),
}


class Done(NamedTuple):
    """The exit code of a command, and its text on standard output and standard error."""

    code: int
    out: str
    err: str

    def refusal(self) -> tuple[int, str]:
        """The exit code and the one line of an error, with nothing on standard output."""
        assert (self.out, self.err.count("\n")) == ("", 1), self.err
        return self.code, self.err.rstrip("\n")


Call = Callable[..., Done]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model directory for each of `SIZES`."""
    folder = tmp_path_factory.mktemp("models")
    for name, size in SIZES.items():
        torch.manual_seed(6)  # With which the Transformer's translations are short, and mostly not empty.
        write_model(build(size, VOCAB), folder / name)
    return folder


@pytest.fixture
def call(models: Path, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in a folder with the models alone, within this process: torch is imported once."""
    monkeypatch.chdir(tmp_path)
    for name in SIZES:
        Path(name).symlink_to(models / name)

    def called(*arguments: str | Path, stdin: bytes = b"") -> Done:
        with monkeypatch.context() as patch:
            if stdin:
                patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
            code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Done(code, out.decode(), err.decode())

    return called
