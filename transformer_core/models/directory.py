"""A model on disk: a directory with `model.safetensors`, `config.json` and `spm.model`, which is sufficient for translation."""

import shutil
from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, field_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transformer_core.config import Decode
from transformer_core.errors import UserError, first_line, is_out_of_memory
from transformer_core.files import new_directory, read_json, sha256_of, write_json
from transformer_core.models.architectures import build
from transformer_core.models.translation import TranslationModel
from transformer_core.schema import Quantity, Section, Total, check_document
from transformer_core.sizes import ModelSize, architectures

WEIGHTS, CONFIG, SUBWORD = "model.safetensors", "config.json", "spm.model"
EXPORTED_WEIGHTS = "model.bin"  # What an export for CTranslate2, which has a config.json of its own, holds instead of `WEIGHTS`.
MARIAN_SUBWORD = "source.spm"  # What a directory of Hugging Face's Marian models holds instead of `SUBWORD`.
MODEL_FILES = f"A model directory holds {WEIGHTS}, {CONFIG} and {SUBWORD}."  # The remedy for a model directory that lacks a file.


class Vocabulary(Section):
    """Size and SHA-256 of the subword model that the weights belong to."""

    size: int
    hash: str


class Training(Section):
    """Origin of the weights. `run` is the id of the training's record, which MLflow's run has as a tag."""

    fingerprint: str
    run: str = ""
    updates: Total
    target_tokens: Total
    seconds: Quantity


if TYPE_CHECKING:
    AnySize = ModelSize
else:
    AnySize = Annotated[reduce(or_, (entry.size for entry in architectures().values())), Field(discriminator="architecture")]


class ModelConfig(Section, strict=False):
    """Content of config.json."""

    format: Literal[2] = 2
    model: AnySize
    vocabulary: Vocabulary
    source: str
    target: str
    training: Training
    averaged: int = 1  # Number of checkpoints averaged in the weights.
    longest_source: Total | None = None  # Most tokens of 999 of 1,000 sources of the training, without the end token, if known.
    decode: Decode | None = None  # The search of its scores, and of translating unless another is asked for; None for the paper's.
    weights_sha256: str | None = None  # Of model.safetensors, which has none of its own; None is not checked.

    @field_validator("model", mode="before")
    @classmethod
    def _without_former_keys(cls, model: object) -> object:
        """Leave out what earlier versions wrote and no longer exists: keys that are null, and a `source_unit` that is the token."""
        former = {"source_unit": "token"}
        return {key: value for key, value in model.items() if value not in (None, former.get(key))} if isinstance(model, dict) else model


def save_model(directory: Path, weights: dict[str, Tensor], config: ModelConfig, subword_model: Path, *others: Path) -> None:
    """Write a model directory atomically, with copies of other files."""
    with new_directory(directory) as temporary:
        save_file(weights, temporary / WEIGHTS)
        summed = config.model_copy(update={"weights_sha256": sha256_of(temporary / WEIGHTS)})
        write_json(temporary / CONFIG, summed.model_dump(mode="json"))
        shutil.copyfile(subword_model, temporary / SUBWORD)
        for file in others:
            shutil.copyfile(file, temporary / file.name)


def read_config(file: Path, remedy: str = "") -> ModelConfig:
    """Read and check a config.json; `remedy` is for one that is wrong.

    Raises `UserError` (65): the file does not exist, is not JSON, or a key is missing, unknown or wrong; or this is an export.
    """
    document = read_json(file, remedy, missing=MODEL_FILES)
    if (file.parent / EXPORTED_WEIGHTS).exists() and not (file.parent / WEIGHTS).exists():
        fault = f"{file.parent}: an export for CTranslate2, not a model directory"
        raise UserError(fault, "Name the folder of the model that was exported, for example models/averaged.")
    if (file.parent / MARIAN_SUBWORD).exists():
        raise UserError(f"{file.parent}: a model of Hugging Face, not a model directory", "Convert it: transformer-core import")
    return check_document(ModelConfig, document, file, remedy)


def check_languages(directory: Path, direction: tuple[str, str], remedy: str) -> None:
    """Check that a model directory translates from the first language to the second. Raises `UserError` (65) with this remedy."""
    config = read_config(directory / CONFIG)
    if (config.source, config.target) != direction:
        fault = f"{directory / CONFIG}: translates {config.source} to {config.target}, and {' to '.join(direction)} is needed"
        raise UserError(fault, remedy)


def load_model(directory: Path) -> tuple[TranslationModel, ModelConfig]:
    """Return the model of a directory, in evaluation mode, and its config.

    If config.json does not match the weights, no more memory is used than the weights take. Raises `UserError` (65): a file is missing,
    damaged or wrong, the weights do not have the shapes of config.json, or a weight is not finite.
    """
    config = read_config(directory / CONFIG)
    file = directory / WEIGHTS
    weights = read_weights(file)
    if config.weights_sha256 not in (None, sha256_of(file)):
        remedy = f"Copy the model again. If you have changed its weights, remove weights_sha256 from {CONFIG}."
        raise UserError(f"{file}: damaged, its SHA-256 is not that of {directory / CONFIG}", remedy)
    unfit = f"{file}: not the weights of {directory / CONFIG}"
    embedding, layers = (config.vocabulary.size, config.model.d_model), config.model.depth
    if weights.get("embedding.weight", torch.empty(0)).shape != embedding or layers > len(weights):
        raise UserError(f"{unfit} ({layers} layers and an embedding of {embedding} are not what it holds)")
    with _WithoutStorage():
        model = build(config.model, config.vocabulary.size)
    try:
        model.load_state_dict({name: weight.to(torch.float32, copy=True) for name, weight in weights.items()}, assign=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{unfit} ({str(error).splitlines()[1].strip()[:200]})") from None
    check_finite(weights, file)
    return model.eval(), config


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the weights in a file. Raises `UserError` (65): no such file, damaged, or other numbers than floating-point ones."""
    remedy = "Take another checkpoint, or train again."
    try:
        weights = load_file(file)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except SafetensorError as error:
        raise UserError(f"{file}: damaged ({first_line(error)})", remedy) from None
    for name, weight in weights.items():
        if weight.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise UserError(f"{file}: {name} holds numbers of the type {str(weight.dtype).removeprefix('torch.')}", remedy)
    return weights


def check_finite(weights: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights with NaN or infinity, which make all translations empty. Raises `UserError` (65): names file and first such weight."""
    for name, weight in weights.items():
        exact = torch.promote_types(weight.dtype, torch.float32)  # A sum of fp16 overflows.
        if not weight.sum(dtype=exact).isfinite():  # One pass without a copy: a sum is finite only if each term is finite.
            raise UserError(f"{file}: {name} holds values that are not finite", "Take another checkpoint, or train again.")


class _WithoutStorage(TorchFunctionMode):
    """Creates parameters without storage: wrong sizes take no memory. `torch.device("meta")` would import torch's compiler, for 0.7 s."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})
