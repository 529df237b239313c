"""The work of the pipeline: corpus, models, training, decoding, evaluation. It depends on no orchestrator, cache or tracker."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from transformer_core.config import DecodingPrecision, EngineOption
    from transformer_core.decoding.library import LoadedModel


def load(
    *directories: str | Path, engine: "EngineOption | None" = None, precision: "DecodingPrecision | None" = None, device: str | None = None
) -> "LoadedModel":
    """Return a model for translation; of several directories the models translate together.

    Options that are None are chosen as `transformer-core translate` does.

    Raises `UserError`: 65, no model directory, or a damaged one; 78, no such engine or device.
    """
    import torch  # Here, because it takes seconds.

    from transformer_core.config import EngineOption
    from transformer_core.decoding.library import LoadedModel
    from transformer_core.errors import configuration_error
    from transformer_core.models.directory import CONFIG, read_config

    if engine not in (None, *(names := get_args(EngineOption))):
        raise configuration_error(f"engine: must be {', '.join(names)}, got {engine!r}")
    try:
        chosen = torch.device(device) if device else None
    except RuntimeError:
        raise configuration_error(f"device: must be cpu, cuda or cuda:NUMBER, got {device!r}") from None
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if chosen and chosen.type != "cpu" and (chosen.type != "cuda" or (chosen.index or 0) >= usable):
        raise configuration_error(f"device: {device} requested, {usable} GPUs here")
    paths = list(map(Path, directories))
    return LoadedModel(paths, read_config(paths[0] / CONFIG), engine, precision, chosen)
