"""Stage download: a catalogue entry becomes data/raw: both sides of every split, and a manifest."""

import shutil
from functools import partial
from pathlib import Path

from flows.process.gpus import free_gpus
from flows.process.paths import AVERAGED, RAW, STATE
from flows.record.server import tracking_uri
from transformer_core.config import Params
from transformer_core.corpus.sources.catalogue import REGISTRY, check_direction, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file, mirror_folder
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource, check_tags, registered_models
from transformer_core.errors import configuration_error
from transformer_core.files import new_directory
from transformer_core.processes import cores

# Finished parts of translated text, and models of the registry while they translate.
SHARDS, FETCHED = STATE / "translated", STATE / "teachers"


def run(params: Params) -> str:
    """Write data/raw for `download.corpus`, from `download.source` to `download.target`."""
    wanted, machine = params.download, params.machine
    found = find_entry(wanted.corpus)
    check_direction(found, wanted.source, wanted.target)
    fetcher = Fetcher(found.entry.name, STATE / "downloads", mirror_folder(machine.mirror), lock_file(wanted.corpus))
    fetcher.remove_scratch()
    reader = SourceReader(found, wanted.source, wanted.target, fetcher)
    check_tags(reader, params.bpe.user_symbols)
    translated = {source.translated.corpus for source in found.entry.splits.train if source.translated}
    with new_directory(RAW) as folder:
        manifest = write_translated(reader, folder, params) if translated else write_raw(reader, folder)
    for corpus in (fetcher.corpus, *translated):
        shutil.rmtree(fetcher.downloads / corpus, ignore_errors=True)
    pairs = ", ".join(f"{split} {record.pairs:,}" for split, record in manifest.splits.items())
    return f"{RAW}: {wanted.corpus}, {wanted.source} to {wanted.target}, pairs: {pairs}"


@free_gpus()
def write_translated(reader: SourceReader, folder: Path, params: Params) -> Manifest:
    """Write the raw corpus of an entry with sources that a model translates. Finished parts are kept in `SHARDS` for the next run.

    Raises `UserError`: as `write_raw`; 69 or 78, the registry is away or has no such model; 78, the model is models/averaged.
    """
    # Here, because few corpora need torch or the registry.
    import torch

    from flows.record.registry import fetch
    from transformer_core.decoding.corpus import translated_text
    from transformer_core.decoding.shards import Shards

    for source in reader.found.entry.splits.train:
        model = source.translated and TranslatedSource(source.translated, reader).model
        if model and model.resolve() == AVERAGED.resolve():  # The training that follows replaces it by the student.
            remedy = f"Copy it first, for example: cp -r {AVERAGED} pretrained/teacher"
            raise configuration_error(f"{reader.found.path}: translated.model: {AVERAGED} is an output of this pipeline", remedy)
    torch.set_num_threads(params.machine.threads or cores())
    shards = Shards(SHARDS)
    shutil.rmtree(FETCHED, ignore_errors=True)
    registered = {}
    for number, name in enumerate(registered_models(reader.found)):
        (FETCHED / str(number)).mkdir(parents=True)
        registered[name] = fetch(name.removeprefix(REGISTRY), tracking_uri(params.machine), FETCHED / str(number))
    manifest = write_raw(reader, folder, Teachers(partial(translated_text, shards), registered))
    shutil.rmtree(FETCHED, ignore_errors=True)
    shards.remove_unused()
    return manifest
