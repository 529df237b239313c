"""The work of the pipeline: corpus, models, training, decoding, evaluation. It depends on no orchestrator, cache or tracker."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from transformer_core.config import DecodingPrecision, EngineOption
    from transformer_core.decoding.library import LoadedModel


def load(
    directory: str | Path,
    *others: str | Path,
    engine: "EngineOption | None" = None,
    precision: "DecodingPrecision | None" = None,
    device: str | None = None,
) -> "LoadedModel":
    """Return a model for translation; of several the models translate together.

    Options that are None are chosen as `transformer-core translate` does.

    Raises `UserError`: 65, no model directory, or a damaged one; 78, no such engine or device.
    """
    from transformer_core.config import EngineOption  # Here: torch takes seconds to load.
    from transformer_core.decoding.library import LoadedModel, usable_device
    from transformer_core.errors import configuration_error
    from transformer_core.models.directory import CONFIG, read_config

    if engine not in (None, *(names := get_args(EngineOption))):
        raise configuration_error(f"engine: must be {', '.join(names)}, got {engine!r}")
    chosen = usable_device(device, "device") if device else None
    paths = [Path(path) for path in (directory, *others)]
    return LoadedModel(paths, read_config(paths[0] / CONFIG), engine, precision, chosen)
