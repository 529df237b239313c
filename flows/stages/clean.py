"""Stage clean: data/raw becomes data/clean, repaired and without unusable training pairs, with a report of the counts."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.gpus import free_gpus
from flows.process.paths import CLEAN, RAW, STATE
from flows.record.documents import tags_of_corpus
from transformer_core.config import PRETRAINED, Params
from transformer_core.corpus.cleaning.cleaner import PairScores, clean_corpus
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport
from transformer_core.corpus.text import Pair
from transformer_core.files import new_directory
from transformer_core.processes import cores

if TYPE_CHECKING:
    from transformer_core.decoding.shards import Shards
    from transformer_core.external import Scorer

SHARDS = STATE / "scored"  # Finished scores.


def run(params: Params) -> str:
    """Write data/clean."""
    with new_directory(CLEAN) as folder:
        scored = params.clean.score_by or params.clean.scorers
        report = cleaned_by_models(params, folder) if scored else cleaned(params, folder)
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
    left, weighted = report.pairs_out - report.by_weights, f"; {report.pairs_out:,} with their weights" if report.by_weights else ""
    counts = f"counts in {CLEAN / CLEANING_REPORT}"
    if params.clean.drop_foreign and "foreign" not in report.dropped:
        counts += "; rule foreign is off: a side of valid and test has no letters"
    return f"{CLEAN}: {left:,} of {report.pairs_in:,} training pairs (dropped: {dropped or 'none'}){weighted}; {counts}"


def cleaned(params: Params, folder: Path, scores: PairScores | None = None, scorers: Sequence[PairScores] = ()) -> CleaningReport:
    """Clean data/raw into `folder`."""
    download, workers = params.download, params.machine.workers
    return clean_corpus(RAW, folder, download.source, download.target, params.clean, workers, scores, tags_of_corpus(), scorers)


@free_gpus()
def cleaned_by_models(params: Params, folder: Path) -> CleaningReport:
    """Clean data/raw, and drop the pairs that two models or commands find bad. Finished scores are kept in `SHARDS` for the next run."""
    import torch  # Imported here, as the next, because few corpora are scored.

    from transformer_core.decoding.dual_cross_entropy import DualScores
    from transformer_core.decoding.shards import Shards
    from transformer_core.external import Scorer

    torch.set_num_threads(params.machine.threads or cores())
    shards = Shards(SHARDS)
    models, direction = params.clean.score_by, (params.download.source, params.download.target)
    dual = DualScores(PRETRAINED / models, shards, direction) if models else None
    with ExitStack() as stack:
        commands = [Scorer(scorer.command, f"clean.scorers.{place}") for place, scorer in enumerate(params.clean.scorers)]
        report = cleaned(params, folder, dual, [partial(_scored, stack.enter_context(command), shards) for command in commands])
    shards.remove_unused()
    return report


def _scored(scorer: "Scorer", shards: "Shards", pairs: Iterator[Pair[str]]) -> Iterator[float]:
    """Yield the scores of pairs by a command, kept by its text and theirs."""

    def inputs(shard: list[Pair[str]]) -> bytes:
        return "\n".join([scorer.command, *(text for pair in shard for text in pair)]).encode()

    scored = shards.lines(pairs, inputs, lambda shard, *_: list(map(repr, scorer.scores(*zip(*shard, strict=True)))), "score")
    yield from (float(score) for _, score in scored)
