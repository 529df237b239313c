"""All readers by name, and those of models: model directories, checkpoints, states, token ids on disk, requests to the served model."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from tests.corpus.encoded import write_binarized
from tests.fuzz import text_readers
from tests.fuzz.fuzzer import Reader
from tests.models.on_disk import VOCAB, translations, write_drawn
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator, load_for_decoding
from transformer_core.errors import UserError, machine_errors
from transformer_core.files import sha256_of
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize
from transformer_core.training.checkpoint import StateDirectory, average

_SIZES: Sequence[ModelSize] = (
    TransformerSize(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.1, positions="learned", most_positions=20, norm="pre"),
    RecurrentSize(layers=1, d_model=8, dropout=0.1, decoder="luong", attention="dot", bidirectional=False),
    ConvolutionalSize(layers=2, d_model=8, dropout=0.1, convolutions=((6, 3, 1), (8, 1, 1))),
)
_SEARCH = Search(beam=2, max_extra=3)


@cache
def _directories() -> tuple[dict[str, bytes], ...]:
    """Return the files of a model directory for each of `_SIZES`, one an architecture."""
    with TemporaryDirectory() as folder:
        written = [write_drawn(Path(folder) / str(number), size) for number, size in enumerate(_SIZES)]
        for directory in written:
            _translate(directory)  # torch imports its compiler for some models, which takes longer than an input may.
        return tuple({path.name: path.read_bytes() for path in directory.iterdir()} for directory in written)


def _write(files: dict[str, bytes], directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def _translate(directory: Path) -> None:
    """Load a model and translate with it: what loads must also work."""
    model, subword = load_for_decoding(directory)
    translations(Translator(model, subword), ["the dog sees a cat"], _SEARCH)


def _config(data: bytes, folder: Path) -> None:
    """config.json beside the files of the model that it names, or of the first."""
    named = [files for files in _directories() if json.loads(files[CONFIG])["model"]["architecture"].encode() in data]
    _translate(_write({**(named or _directories())[0], CONFIG: data}, folder / "model"))


def _weights(data: bytes, folder: Path) -> None:
    """The directory of a model from a stranger, whose config.json has the sum of these weights."""
    config = json.loads(_directories()[0][CONFIG]) | {"weights_sha256": hashlib.sha256(data).hexdigest()}
    _translate(_write({**_directories()[0], WEIGHTS: data, CONFIG: json.dumps(config).encode()}, folder / "model"))


def _subword(data: bytes, folder: Path) -> None:
    """spm.model from a stranger, whose config.json names its hash."""
    config = json.loads(_directories()[0][CONFIG])
    config["vocabulary"]["hash"] = hashlib.sha256(data).hexdigest()
    _translate(_write({**_directories()[0], SUBWORD: data, CONFIG: json.dumps(config).encode()}, folder / "model"))


def _checkpoint(data: bytes, folder: Path) -> None:
    whole, damaged = folder / "update-00000001.safetensors", folder / "update-00000002.safetensors"
    whole.write_bytes(_directories()[0][WEIGHTS])
    damaged.write_bytes(data)
    average([whole, damaged])


@cache
def _state_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        states = StateDirectory(Path(folder), keep=1)
        states.save(7, {"model": {"weight": torch.arange(6.0).view(2, 3)}, "progress": {"update": 7, "scores": {7: 1.5}}, "scaler": {}})
        states.wait()
        return next(Path(folder).glob("*.pt")).read_bytes()


def _state(data: bytes, folder: Path) -> None:
    """A state that matches its checksum: it was damaged before that was written, or is of a stranger."""
    file = folder / "state-00000007.pt"
    file.write_bytes(data)
    file.with_suffix(".sha256").write_text(sha256_of(file), encoding="ascii")
    with machine_errors("train", ""):  # As in the stage: a state that claims to be huge is not passed over, it could be true.
        list(StateDirectory(folder, keep=1).states())


@cache
def _split_files() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        write_binarized(Path(folder), [[5, 6, 3], [7, 3]], [[8, 3], [9, 10, 3]], VOCAB)
        return {path.name: path.read_bytes() for path in Path(folder, "train").iterdir()}


def _part_of_split(name: str) -> Reader:
    """A file of a split of token ids beside the right others."""

    def read(data: bytes, folder: Path) -> None:
        split = open_split(_write({**_split_files(), name: data}, folder / "train"))
        pairs = split.pairs(np.arange(len(split)))
        assert pairs.lengths.sum() == split.source.lengths.sum() + split.target.lengths.sum()

    return Reader(read, lambda: [_split_files()[name]])


def _shortlist(data: bytes, folder: Path) -> None:
    file = folder / SHORTLIST
    file.write_bytes(data)
    found = Shortlist.load(file, 6)
    for token in range(6):
        found.of([token])


def _shortlists() -> list[bytes]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / SHORTLIST
        Shortlist(np.array([0, 0, 0, 0, 0, 2, 3]), np.array([4, 5, 5]), np.array([0, 1, 2, 3, 4])).save(file)
        return [file.read_bytes()]


@cache
def _served() -> Any:
    """Return the served model behind MLflow's checks of a request."""
    from mlflow.models import Model, infer_signature
    from mlflow.pyfunc import PyFuncModel
    from mlflow.pyfunc.model import PythonModelContext, _PythonModelPyfuncWrapper

    from flows.record.served_model import RequestParams, ServedTranslator

    served, folder = ServedTranslator(), TemporaryDirectory()
    served.load_context(PythonModelContext({"model": str(_write(_directories()[0], Path(folder.name) / "model"))}, {}))
    served.folder = folder  # type: ignore[attr-defined]  # Which lives as long: a request may load the other engine.
    signature = infer_signature(["a line"], ["eine Zeile"], params=RequestParams().model_dump())
    return PyFuncModel(Model(signature=signature), _PythonModelPyfuncWrapper(served, None, signature))


def _request(data: bytes, _: Path) -> None:
    """A request over HTTP, without the network; the answer is a status that is not a server's error."""
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc.scoring_server import invocations

    model = _served()
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        raise UserError("not JSON") from None  # MLflow's server answers.
    try:
        answer = invocations(data, "application/json", model, model.metadata.get_input_schema())
    except MlflowException as error:
        message = json.loads(error.serialize_as_json())["message"]
        if error.get_http_status_code() != 400 or "unexpected error" in message:
            raise
        raise UserError("refused") from None  # Most of these messages are MLflow's.
    assert answer.status == 200


_REQUESTS = [
    json.dumps({"inputs": lines, "params": params}).encode()
    for lines, params in (
        (["the dog", "a cat sees"], {"beam": 2, "max_extra": 3}),
        (["der Hund"], {"beam": 2, "alpha": 1.0, "penalty": "power", "nbest": True, "max_extra": 3}),
        ([""], {"scores": True}),
    )
]


def _parts(name: str, count: int | None = None) -> Callable[[], Sequence[bytes]]:
    return lambda: [files[name] for files in _directories()[:count]]


READERS: dict[str, Reader] = {
    **text_readers.READERS,
    "model-config": Reader(_config, _parts(CONFIG)),
    "model-weights": Reader(_weights, _parts(WEIGHTS, 1)),
    "model-subword": Reader(_subword, _parts(SUBWORD, 1)),
    "checkpoint": Reader(_checkpoint, _parts(WEIGHTS, 1)),
    "training-state": Reader(_state, lambda: [_state_bytes()]),
    "token-meta": _part_of_split("meta.json"),
    "tokens": _part_of_split("00000.tokens.npy"),
    "token-offsets": _part_of_split("00000.offsets.npy"),
    "token-lines": _part_of_split("00000.lines.npy"),
    "shortlist": Reader(_shortlist, _shortlists),
    "request": Reader(_request, lambda: _served() and _REQUESTS),
}
