"""Plan of a recipe's corpus: sources and disk space, without downloading anything."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_core.config import Params, resolve
from transformer_core.corpus.sources.catalogue import Size, Source, check_direction, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file, locked_sums
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import TranslatedSource
from transformer_core.corpus.tokens.binary import token_type
from transformer_core.errors import without_logins
from transformer_core.models.architectures import parameters_by_part

# Typical of European languages, with a vocabulary of some ten thousand subwords.
_BYTES_PER_TOKEN = 4.5
_OFFSET_BYTES_PER_PAIR = 24
_WEIGHT_BYTES = 4
# A state of training holds the weights and Adam's two moments.
_STATE_PER_WEIGHT, _STATES_KEPT = 3, 2


@dataclass(frozen=True)
class PlannedFile:
    """A source of a split: its path, address or description, whether it is downloaded, and its checksum or where that comes from."""

    split: str
    source: str
    fetched: bool
    checked_by: str


@dataclass(frozen=True)
class DataPlan:
    """The output of `data plan`; `disk` are bytes by purpose, empty if the catalogue's entry does not give the size of the corpus."""

    corpus: str
    direction: tuple[str, str]
    licence: str | None
    note: str
    pairs: int | None
    files: list[PlannedFile]
    disk: dict[str, int]


def plan_data(params: Params) -> DataPlan:
    """Plan `download.corpus` in the direction and sizes of `params`. Raises `UserError` (78): it is unknown, or not in these languages."""
    wanted = params.download
    found = find_entry(wanted.corpus)
    check_direction(found, wanted.source, wanted.target)
    reader = SourceReader(found, wanted.source, wanted.target, Fetcher(found.entry.name, Path()))
    files = [
        file
        for split, sources in found.entry.sources.items()
        for source in sources
        for part in reader.readers_of(source)
        for file in _files(split, source, part)
    ]
    size = found.entry.size
    return DataPlan(
        corpus=found.entry.name,
        direction=reader.direction,
        licence=found.entry.licence,
        note=found.entry.note,
        pairs=size.pairs if size else None,
        files=list(dict.fromkeys(files)),  # One archive may contain both sides; a translated text may have one side.
        disk=_disk(params, size) if size else {},
    )


def _files(split: str, source: Source, reader: SourceReader) -> Iterator[PlannedFile]:
    later = "locked at the first fetch"
    if source.files is not None:
        for file in (source.files[language] for language in reader.direction):
            yield PlannedFile(split, file.path, False, _shown_sum(file.sha256, "none"))
    elif source.https is not None:
        locked = locked_sums(lock_file(reader.found.entry.name))
        for address in (source.https[language] for language in reader.direction):
            url = without_logins(address.url)
            yield PlannedFile(split, url, True, _shown_sum(address.sha256 or locked.get(url), later))
    elif source.mtdata is not None:
        yield PlannedFile(split, f"mtdata {source.mtdata}", True, later)
    elif source.sacrebleu is not None:
        yield PlannedFile(split, f"sacrebleu {source.sacrebleu}", True, "md5 of sacreBLEU")
    elif source.trees is not None:
        yield PlannedFile(split, source.trees, False, "none")
    else:
        assert source.translated is not None
        translated, wanted = TranslatedSource(source.translated, reader), source.translated
        for text_source in translated.sources:
            yield from _files(split, text_source, translated.text)
        words = f"{wanted.side} of {wanted.corpus} by {wanted.model}"
        yield PlannedFile(split, words, wanted.registered, later if wanted.registered else "none")


def _shown_sum(digest: str | None, otherwise: str) -> str:
    return f"sha256 {digest[:12]}..." if digest else otherwise


def _disk(params: Params, size: Size) -> dict[str, int]:
    """Return the bytes by purpose."""
    tokens = size.text_bytes / _BYTES_PER_TOKEN
    weights = _WEIGHT_BYTES * sum(parameters_by_part(resolve(params.model), params.bpe.vocab_size).values())
    return {
        "downloads, until data/raw is complete": size.download_bytes,
        "data/raw": size.text_bytes,
        "data/clean": size.text_bytes,
        "data/binarized": round(tokens * token_type(params.bpe.vocab_size).itemsize) + size.pairs * _OFFSET_BYTES_PER_PAIR,
        "models/checkpoints": (params.train.keep + params.train.keep_best) * weights,
        "models/averaged": weights,
        "state of a running training": _STATES_KEPT * _STATE_PER_WEIGHT * weights,
    }
