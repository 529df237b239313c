"""Stage average: the mean of the last or the best checkpoints, as a complete model directory."""

from pydantic import ConfigDict

from flows.process.paths import AVERAGED, CHECKPOINT_SCORES, CHECKPOINTS, SUBWORD_MODEL
from transformer_core.config import Average, Measure, Params, Section, validate_document
from transformer_core.errors import UserError
from transformer_core.files import read_json
from transformer_core.models.directory import CONFIG, read_config, save_model
from transformer_core.training.checkpoint import average, best_updates, checkpoint_files, update_of


class _Scores(Section):
    """The scores of validations by update, NaN included, in the measure that selects the best checkpoints."""

    model_config = ConfigDict(strict=False, allow_inf_nan=True)

    best_by: Measure
    scores: dict[int, float]


def run(params: Params) -> str:
    """Average the weights of `average.count` checkpoints, and write them with config and subword model."""
    updates = _chosen(params.average)
    files = {update_of(file): file for file in checkpoint_files(CHECKPOINTS)}
    config = read_config(CHECKPOINTS / CONFIG).model_copy(update={"averaged": params.average.count})
    save_model(AVERAGED, average([files[update] for update in updates]), config, SUBWORD_MODEL)
    if len(updates) == 1:
        return f"{AVERAGED}: the {params.average.of} checkpoint (update {updates[0]:,})"
    listed = ", ".join(f"{update:,}" for update in updates)
    return f"{AVERAGED}: mean of the {params.average.of} {len(updates)} checkpoints (updates {listed})"


def _chosen(settings: Average) -> list[int]:
    """Return the updates of the checkpoints to average, ascending. Raises `UserError` (65): fewer checkpoints than asked for."""
    there = [update_of(file) for file in checkpoint_files(CHECKPOINTS)]
    if settings.of == "best":
        record = validate_document(_Scores, read_json(CHECKPOINT_SCORES), CHECKPOINT_SCORES)
        scores = {update: score for update, score in record.scores.items() if update in there}
        there = sorted(best_updates(scores, record.best_by, settings.count))
    if len(there) < settings.count:
        raise UserError(
            f"{CHECKPOINTS}: {len(there)} checkpoints, average.count asks for {settings.count}", "Average fewer, or train longer."
        )
    return there[-settings.count :]
