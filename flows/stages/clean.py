"""Stage clean: data/raw becomes data/clean, repaired and without unusable training pairs, with a report of the counts."""

from pathlib import Path

from flows.process.gpus import free_gpus
from flows.process.paths import CLEAN, RAW, STATE
from flows.record.documents import directions_of_corpus, tags_of_corpus
from transformer_core.config import PRETRAINED, Params
from transformer_core.corpus.cleaning.cleaner import PairScores, clean_corpus
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport
from transformer_core.files import new_directory
from transformer_core.processes import cores

SHARDS = STATE / "scored"  # Finished scores.


def run(params: Params) -> str:
    """Write data/clean."""
    with new_directory(CLEAN) as folder:
        report = cleaned_by_models(params, folder) if params.clean.score_by else cleaned(params, folder)
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
    left, weighted = report.pairs_out - report.by_weights, f"; {report.pairs_out:,} with their weights" if report.by_weights else ""
    counts = f"counts in {CLEAN / CLEANING_REPORT}"
    if params.clean.drop_foreign and "foreign" not in report.dropped:
        counts += "; rule foreign is off: a side of valid and test has no letters"
    return f"{CLEAN}: {left:,} of {report.pairs_in:,} training pairs (dropped: {dropped or 'none'}){weighted}; {counts}"


def cleaned(params: Params, folder: Path, scores: PairScores | None = None) -> CleaningReport:
    """Clean data/raw into `folder`."""
    download, workers = params.download, params.machine.workers
    tags, directions = tags_of_corpus(), directions_of_corpus()
    return clean_corpus(RAW, folder, download.source, download.target, params.clean, workers, scores, tags, directions)


@free_gpus()
def cleaned_by_models(params: Params, folder: Path) -> CleaningReport:
    """Clean data/raw, and drop the pairs that two models find worst. Finished scores are kept in `SHARDS` for the next run."""
    import torch  # Imported here, as the next, because few corpora are scored.

    from transformer_core.decoding.dual_cross_entropy import DualScores
    from transformer_core.decoding.shards import Shards

    torch.set_num_threads(params.machine.threads or cores())
    shards = Shards(SHARDS)
    models = PRETRAINED / str(params.clean.score_by)
    report = cleaned(params, folder, DualScores(models, shards, (params.download.source, params.download.target)))
    shards.remove_unused()
    return report
