"""Stage download: a catalogue entry becomes data/raw: both sides of every split, and a manifest."""

import shutil

from flows.process.paths import CORPORA, RAW, STATE
from transformer_core.config import Params
from transformer_core.corpus.sources.catalogue import check_direction, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file, mirror_folder
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.files import new_directory


def run(params: Params) -> str:
    """Write data/raw for `download.corpus`, from `download.source` to `download.target`."""
    wanted, machine = params.download, params.machine
    found = find_entry(wanted.corpus, CORPORA)
    check_direction(found, wanted.source, wanted.target)
    fetcher = Fetcher(found.entry.name, STATE / "downloads", mirror_folder(machine.mirror), lock_file(wanted.corpus, CORPORA))
    with new_directory(RAW) as folder:
        manifest = write_raw(SourceReader(found, wanted.source, wanted.target, fetcher, machine.workers), folder)
    shutil.rmtree(fetcher.downloads / fetcher.corpus, ignore_errors=True)
    pairs = ", ".join(f"{split} {record.pairs:,}" for split, record in manifest.splits.items())
    return f"{RAW}: {wanted.corpus}, {wanted.source} to {wanted.target}, pairs: {pairs}"
