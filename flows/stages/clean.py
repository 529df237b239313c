"""Stage clean: data/raw becomes data/clean, repaired and without unusable training pairs, with a report of the counts."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.gpus import free_gpus
from flows.process.paths import CLEAN, MANIFEST, RAW, STATE
from flows.record.documents import read_output, tags_of_corpus
from transformer_core.config import PRETRAINED, Params
from transformer_core.corpus.cleaning.cleaner import LOW_SCORE, Drops, PairScores, below, clean_corpus, repeated_targets, worst
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport
from transformer_core.corpus.cleaning.rules import REPEATED_TARGET
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
        report = cleaned_by_models(params, folder) if params.clean.score_by or params.clean.scorers else cleaned(params, folder)
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
    left, weighted = report.pairs_out - report.by_weights, f"; {report.pairs_out:,} with their weights" if report.by_weights else ""
    counts = f"counts in {CLEAN / CLEANING_REPORT}"
    if params.clean.drop_foreign and "foreign" not in report.dropped:
        counts += "; rule foreign is off: a side of valid and test has no letters"
    return f"{CLEAN}: {left:,} of {report.pairs_in:,} training pairs (dropped: {dropped or 'none'}){weighted}; {counts}"


def cleaned(
    params: Params, folder: Path, scored: Mapping[str, Drops] | None = None, part_of_rule: Mapping[str, str] | None = None
) -> CleaningReport:
    """Clean data/raw into `folder`."""
    download, workers = params.download, params.machine.scheduler or params.machine.workers
    splits, tags = read_output(MANIFEST)["splits"], tags_of_corpus()
    directions = {split: record.get("directions", []) for split, record in splits.items()}
    return clean_corpus(RAW, folder, download.source, download.target, params.clean, workers, scored, tags, directions, part_of_rule)


@free_gpus()
def cleaned_by_models(params: Params, folder: Path) -> CleaningReport:
    """Clean data/raw, and drop the pairs that two models or commands find bad. Finished scores are kept in `SHARDS` for the next run."""
    import torch  # Imported here, as the next, because few corpora are scored.

    from transformer_core.decoding.dual_cross_entropy import dual_scores
    from transformer_core.decoding.shards import Shards
    from transformer_core.external import Scorer

    torch.set_num_threads(params.machine.threads or cores())
    shards, clean = Shards(SHARDS), params.clean
    scored: dict[str, Drops] = {}
    part_of_rule: dict[str, str] = {}
    noise: list[PairScores] = []
    if clean.score_by:
        noise.append(partial(dual_scores, PRETRAINED / clean.score_by, shards, (params.download.source, params.download.target)))
        scored[LOW_SCORE] = partial(worst, clean.drop_worst, noise[0])
    with ExitStack() as stack:
        for number, found in enumerate(clean.scorers, start=1):
            rule, scorer = f"below_threshold_{number}", stack.enter_context(Scorer(found.command, f"clean.scorers.{number - 1}"))
            scored[rule] = partial(below, found.threshold, partial(_scores, scorer, shards, 1))
            if found.part:
                part_of_rule[rule] = found.part
            else:
                noise.append(partial(_scores, scorer, shards, -1))
        if clean.drop_repeated_targets and noise:
            scored[REPEATED_TARGET] = partial(repeated_targets, noise[0])
        report = cleaned(params, folder, scored, part_of_rule)
    shards.remove_unused()
    return report


def _scores(scorer: "Scorer", shards: "Shards", sign: int, pairs: Iterator[Pair[str]]) -> Iterator[float]:
    """Yield the command's score of each pair, times a sign; scores are kept by the command and the text."""

    def inputs(shard: list[Pair[str]]) -> bytes:
        return "\n".join([scorer.command, *(text for pair in shard for text in pair)]).encode()

    scored = shards.lines(pairs, inputs, lambda shard, *_: list(map(repr, scorer.scores(*zip(*shard, strict=True)))), "score")
    yield from (sign * float(score) for _, score in scored)
