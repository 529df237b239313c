"""A model on disk: `model.safetensors`, `config.json` and `spm.model` in one directory, all that translating needs."""

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformer_core.config import Section, validate_document
from transformer_core.errors import UserError
from transformer_core.files import new_directory, read_json, write_json
from transformer_core.models.architectures import build
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize

WEIGHTS, CONFIG, SUBWORD = "model.safetensors", "config.json", "spm.model"


class Vocabulary(Section):
    """Size and SHA-256 of the subword model that the weights belong to."""

    size: int
    hash: str


class Training(Section):
    """Where the weights come from."""

    fingerprint: str
    updates: int
    target_tokens: int
    seconds: float


class ModelConfig(Section):
    """config.json. `averaged` counts the checkpoints in the weights; 1 is a single one."""

    model_config = ConfigDict(strict=False, frozen=True, extra="forbid")

    format: Literal[2] = 2
    model: Annotated[ModelSize, Field(discriminator="architecture")]
    vocabulary: Vocabulary
    source: str
    target: str
    training: Training
    averaged: int = 1


def save_model(directory: Path, weights: dict[str, Tensor], config: ModelConfig, subword_model: Path) -> None:
    """Write a complete model directory, or none."""
    with new_directory(directory) as temporary:
        save_file(weights, temporary / WEIGHTS)
        write_json(temporary / CONFIG, config.model_dump(mode="json"))
        shutil.copyfile(subword_model, temporary / SUBWORD)


def read_config(file: Path) -> ModelConfig:
    """Read and check a config.json.

    Raises:
        UserError: no such file, or not one of ours.
    """
    try:
        document: Any = read_json(file)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file", "A model directory holds model.safetensors, config.json and spm.model.") from None
    except ValueError:
        raise UserError(f"{file}: not valid JSON") from None
    return validate_document(ModelConfig, document, file)


def load_model(directory: Path) -> tuple[TranslationModel, ModelConfig]:
    """The model of a directory, ready to evaluate.

    Raises:
        UserError: exit code 65; a file is missing, damaged or of another shape than config.json says.
    """
    config = read_config(directory / CONFIG)
    model = build(config.model, config.vocabulary.size)
    file = directory / WEIGHTS
    try:
        model.load_state_dict(load_file(file))
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{file}: not the weights of {directory / CONFIG} ({str(error).splitlines()[0]})") from None
    return model.eval(), config
