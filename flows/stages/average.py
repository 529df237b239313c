"""Stage average: the mean of the last or the best checkpoints, as a complete model directory."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.process.paths import AVERAGED, BINARIZED, CHECKPOINT_SCORES, CHECKPOINTS, SUBWORD_MODEL, require, rerun_remedy
from transformer_core.config import Average, Params
from transformer_core.corpus.tokens.binary import check_split, open_split
from transformer_core.corpus.tokens.shortlist import SHORTLIST, align
from transformer_core.errors import UserError
from transformer_core.files import read_json
from transformer_core.models.directory import CONFIG, read_config, save_model
from transformer_core.schema import Name, Section, check_document
from transformer_core.training.checkpoint import average, best_updates, checkpoint_files, keep_finished, update_of


class _Scores(Section, strict=False, allow_inf_nan=True):
    """The scores of validations by update, NaN included, in the measure that selects the best checkpoints."""

    best_by: Name
    scores: dict[int, float]


def run(params: Params) -> str:
    """Average the weights of `average.count` checkpoints, and write them with config, subword model and, if wanted, shortlist.

    The config gets section `decode`, so that whoever translates with the model searches as stage decode does.
    """
    updates = _chosen(params.average)
    files = {update_of(file): file for file in checkpoint_files(CHECKPOINTS)}
    trained = read_config(CHECKPOINTS / CONFIG, rerun_remedy(CHECKPOINTS))
    keep_finished(trained.training.fingerprint)
    config = trained.model_copy(update={"averaged": params.average.count, "decode": params.decode})
    weights = average([files[update] for update in updates])
    with TemporaryDirectory() as folder:
        shortlist = Path(folder) / SHORTLIST
        if params.average.shortlist:
            check_split(BINARIZED / "train")
            train = open_split(BINARIZED / "train")
            pairs = partial(map, lambda number: (train.source[number], train.target[number]), range(len(train)))
            align(pairs, config.vocabulary.size, params.average.shortlist).save(shortlist)
        save_model(AVERAGED, weights, config, SUBWORD_MODEL, *([shortlist] if params.average.shortlist else []))
    if len(updates) == 1:
        return f"{AVERAGED}: the {params.average.of} checkpoint (update {updates[0]:,})"
    listed = ", ".join(f"{update:,}" for update in updates)
    return f"{AVERAGED}: mean of the {params.average.of} {len(updates)} checkpoints (updates {listed})"


def _chosen(settings: Average) -> list[int]:
    """Return the updates of the checkpoints to average, ascending. Raises `UserError` (65): fewer checkpoints than asked for."""
    there = [update_of(file) for file in checkpoint_files(CHECKPOINTS)]
    if settings.of == "best":
        require(CHECKPOINT_SCORES)
        remedy = rerun_remedy(CHECKPOINT_SCORES)
        record = check_document(_Scores, read_json(CHECKPOINT_SCORES, remedy), CHECKPOINT_SCORES, remedy)
        # Others may be gone: `train.keep_best` was lower when they were removed.
        scores = {update: score for update, score in record.scores.items() if update in there}
        there = sorted(best_updates(scores, record.best_by, settings.count))
    if len(there) < settings.count:
        fault = f"{CHECKPOINTS}: {len(there)} checkpoints, average.count asks for {settings.count}"
        raise UserError(fault, "Average fewer, or train longer.")
    return there[-settings.count :]
