"""The work of the pipeline: corpus, models, training, decoding, evaluation. It depends on no orchestrator, cache or tracker."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_core.config import DecodingPrecision, EngineOption
    from transformer_core.decoding.library import LoadedModel


def load(
    *directories: str | Path, engine: "EngineOption | None" = None, precision: "DecodingPrecision | None" = None, device: str | None = None
) -> "LoadedModel":
    """Return a model for translation; of several directories the models translate together.

    Options that are None are chosen as `transformer-core translate` does. Raises `UserError` (65): no model directory, or a damaged one.
    """
    import torch  # Here, because it takes seconds.

    from transformer_core.decoding.library import LoadedModel
    from transformer_core.models.directory import CONFIG, read_config

    paths = list(map(Path, directories))
    return LoadedModel(paths, read_config(paths[0] / CONFIG), engine, precision, torch.device(device) if device else None)
