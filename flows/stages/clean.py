"""Stage clean: data/raw becomes data/clean, repaired and without unusable training pairs, with a report of the counts."""

from flows.process.paths import CLEAN, RAW
from transformer_core.config import Params
from transformer_core.corpus.cleaning.cleaner import REPORT, clean_corpus
from transformer_core.files import new_directory


def run(params: Params) -> str:
    """Write data/clean."""
    with new_directory(CLEAN) as folder:
        report = clean_corpus(RAW, folder, params.download.source, params.download.target, params.clean, params.machine.workers)
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
    return f"{CLEAN}: {report.pairs_out:,} of {report.pairs_in:,} training pairs (dropped: {dropped or 'none'}); counts in {CLEAN / REPORT}"
