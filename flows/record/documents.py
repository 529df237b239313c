"""The JSON files that stages write for other stages: what their readers need is checked before it is used.

A reader gets the document as it is in the file. Keys that no reader needs are not checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flows.process.paths import AVERAGED, CHECKPOINTS, CLEAN, DECODED, MANIFEST, PUBLISHED, RAW, TRAINING_METRICS, require, rerun_remedy
from transformer_core.config import Decode, Params
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.errors import configuration_error
from transformer_core.files import read_json
from transformer_core.schema import Name, PositiveInt, Quantity, Section, Total, check_document

CLEANING, DECODING = CLEAN / CLEANING_REPORT, DECODED / "statistics.json"
MODEL_CONFIG, CHECKPOINT_CONFIG = AVERAGED / "config.json", CHECKPOINTS / "config.json"


class Needed(Section):
    """The keys that readers need; the file may have others."""

    model_config = ConfigDict(extra="ignore")


class _TrainingMetrics(Needed):
    """metrics.json of stage train. The perplexity of a model that has learnt nothing may be infinite."""

    model_config = ConfigDict(allow_inf_nan=True)

    updates: Total
    parameters: Total
    minutes: Quantity
    tokens_per_second: Quantity
    valid_perplexity: float


class _Trained(Needed):
    """The key `training` of a model's config.json."""

    fingerprint: Name
    run: str = Field("", pattern=r"^[\w.-]*$")
    updates: Total


class _Model(Needed):
    """A model's config.json, for readers that do not load the model; `models.directory.read_config` checks all of it."""

    training: _Trained
    decode: Decode | None = None


class _Speed(Needed):
    """A split in statistics.json."""

    lines: Total
    seconds: Quantity
    target_tokens: Total
    tokens_per_second: Quantity


class _Decoding(Needed):
    """statistics.json of stage decode."""

    valid: _Speed
    test: _Speed
    engine: str
    beam: PositiveInt
    penalty: str
    alpha: Quantity
    made: str
    machine: str


class _Published(Needed):
    """published.json of stage publish; the model of an experiment of DVC has no version."""

    name: Name
    version: str = ""


_SCHEMAS: Mapping[Path, type[BaseModel]] = {
    MANIFEST: Manifest,
    CLEANING: CleaningReport,
    TRAINING_METRICS: _TrainingMetrics,
    CHECKPOINT_CONFIG: _Model,
    MODEL_CONFIG: _Model,
    DECODING: _Decoding,
    PUBLISHED: _Published,
}


def read_output(path: Path, root: Path = Path()) -> dict[str, Any]:
    """Return a JSON file of a stage, one of `_SCHEMAS`, of the repository at `root`.

    Raises `UserError` (65): it is missing or not JSON, or a key that a reader needs is missing or wrong.
    """
    return checked(_SCHEMAS[path], unchecked(path, root), path, root)


def read_manifest(params: Params) -> dict[str, Any]:
    """Return the manifest of data/raw, empty if there is none: stage train depends on the corpus, and not on its manifest.

    So `dvc repro --single-item --pull train` does not fetch it, and an edit of a licence or of a test set trains no new model.

    Raises `UserError`: as `read_output`; 78, it is of another corpus than section download names.
    """
    if not MANIFEST.exists():
        return {}
    manifest, wanted = read_output(MANIFEST), params.download
    if (manifest["corpus"], manifest["source"], manifest["target"]) != (wanted.corpus, wanted.source, wanted.target):
        found = f"{manifest['corpus']} from {manifest['source']} to {manifest['target']}"
        fault = f"{RAW}: holds {found}, but section download names {wanted.corpus} from {wanted.source} to {wanted.target}"
        raise configuration_error(fault, "Run the stages from download on: dvc repro")
    return manifest


def tags_of_corpus() -> set[str]:
    """Return the tags of data/raw: texts with which sentences that a model has made begin. Raises `UserError` (65), as `read_output`."""
    return {origin["tag"] for origin in read_output(MANIFEST)["origin"] if "tag" in origin}


def unchecked(path: Path, root: Path) -> Any:
    """Return any JSON file of a stage. Raises `UserError` (65): it is missing or not JSON."""
    if root == Path():
        require(path)
    return read_json(root / path, rerun_remedy(path))


def checked(schema: type[BaseModel], document: Any, path: Path, root: Path) -> dict[str, Any]:
    """Return a document as it is. Raises `UserError` (65): a key of the schema is missing or wrong."""
    check_document(schema, document, root / path, rerun_remedy(path))
    return dict(document)
