"""Inputs of stage publish: a model of some thousand random weights, its translations of a test set, scores and tables; and its record."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import Run

from flows.process.paths import AVERAGED, DECODED, RAW, REPORT, SCORES, SENTENCES, TRAINING, UPDATES
from flows.record.run import FINGERPRINT as FINGERPRINT_TAG
from flows.record.run import RunRecord
from flows.record.server import connect, search
from flows.stages import publish
from tests.models.on_disk import SMALL, write_model
from transformer_core import recipes
from transformer_core.config import PAPER_SEARCH, load_params
from transformer_core.corpus.text import write_lines
from transformer_core.evaluation.metrics import SCORING
from transformer_core.files import read_json, write_json
from transformer_core.models.directory import Training
from transformer_core.models.transformer import Transformer

FINGERPRINT = "f00d"
SCORES_OF_SET = {key: 90.0 for score in SCORING.scores for key in score.keys}
FIGURES = {
    **SCORES_OF_SET, **{share.key: 0.0 for share in SCORING.shares}, "bleu": 86.41, "corpus": "tatoeba", "lines": 60,
    "signature": "tok:13a", "references_sha256": "0" * 64, "valid": SCORES_OF_SET,
}  # fmt: skip
SPLIT = {"pairs": 60, "files": {language: {"sha256": "0" * 64, "lines": 60} for language in ("en", "de")}}
MANIFEST = {
    "corpus": "tatoeba", "source": "en", "target": "de", "licence": None, "origin": [],
    "splits": {"train": SPLIT, "valid": SPLIT, "test": SPLIT},
}  # fmt: skip
SOURCES = [f"Dog number {number} runs in the park today with a ball and a cat." for number in range(60)]
REFERENCES = [f"Der {number}. Hund läuft heute im Park mit einem Ball und einer Katze." for number in range(60)]
LINES = ["A man is riding a bike.", "Two dogs are running.", "Ein Mann fährt Fahrrad.", "Zwei Hunde laufen."] * 20


def random_model(folder: Path) -> Path:
    """A model directory in `folder`, complete as stage average leaves it."""
    torch.manual_seed(9)  # Of the first dozen one whose translations differ from line to line.
    training = Training(fingerprint=FINGERPRINT, updates=3, target_tokens=1000, seconds=1.0)
    return write_model(Transformer(SMALL, 60), folder / "averaged", LINES, training, PAPER_SEARCH)


def set_search(directory: Path, **changes: object) -> None:
    """Give a model directory the paper's search, with changes, in place of its own."""
    config = directory / "config.json"
    write_json(config, read_json(config) | {"decode": PAPER_SEARCH.model_dump() | changes})


def before_publish(model_directory: Path) -> None:
    """Write the inputs of stage publish to the working directory."""
    Path("params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    AVERAGED.mkdir(parents=True)
    for file in model_directory.iterdir():
        (AVERAGED / file.name).symlink_to(file)  # As DVC leaves it with cache.type symlink.
    write_json(SCORES, FIGURES)
    REPORT.write_text("<h1>BLEU</h1>")
    SENTENCES.write_text("<h1>All sentences</h1>")
    write_json(RAW / "manifest.json", MANIFEST)
    write_lines(RAW / "test.en", SOURCES)
    write_lines(RAW / "test.de", REFERENCES)
    write_lines(DECODED / "test.hyp", REFERENCES)
    TRAINING.mkdir()
    (TRAINING / "updates.csv").write_text("update,loss,seconds\n1,3.5,1\n2,3.0,2\n3,2.5,3\n")
    (TRAINING / "validation.csv").write_text("update,nll,score,seconds\n3,2.75,12.5,0.5\n")


def publish_in(folder: Path, model_directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Publish a model in a record of the folder, which becomes the working directory, so that its server can be started from there."""
    store = f"sqlite:///{folder}/mlflow.db"
    patch.chdir(folder)
    patch.setenv("MLFLOW_TRACKING_URI", store)
    patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))  # MLflow starts uvicorn by its name.
    connect(store).search_experiments()  # Makes the tables.
    before_publish(model_directory)
    publish.run(load_params())


def recorded(identity: str = FINGERPRINT, losses: Sequence[float] = (), fingerprint: str = FINGERPRINT, first: int = 1) -> RunRecord:
    """Write the record of a training that goes on, with these losses at the updates from `first` on."""
    record = RunRecord(id=identity, tags={FINGERPRINT_TAG: fingerprint}, score="bleu")
    record.write()
    add_losses(record, losses, first)
    return record


def add_losses(record: RunRecord, losses: Sequence[float], first: int = 1) -> None:
    table = record.folder / UPDATES.name
    if not table.exists():
        table.write_text("update,loss,seconds\n")
    with table.open("a") as file:
        file.writelines(f"{update},{loss},{update / 4}\n" for update, loss in enumerate(losses, first))


def training(client: MlflowClient, fingerprint: str = FINGERPRINT) -> Run:
    """The latest run of a training with this fingerprint."""
    return search(client, f"tags.{FINGERPRINT_TAG} = '{fingerprint}'")[0]


def points(client: MlflowClient, name: str = "train/loss", fingerprint: str = FINGERPRINT) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(training(client, fingerprint).info.run_id, name)]
