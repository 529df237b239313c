"""data/raw: two aligned files for each split of an entry, and a manifest with their sums and origins."""

from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from transformer_core.corpus.sources.catalogue import Source
from transformer_core.corpus.sources.manifest import MANIFEST, Manifest, Origin, SideRecord, SplitRecord
from transformer_core.corpus.sources.readers import OpenedSource, SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource
from transformer_core.corpus.text import PAIR_PARTS, PAIR_WEIGHTS, UNNAMED_PART, read_raw_lines
from transformer_core.errors import UserError
from transformer_core.files import sha256_of, write_json


def write_raw(reader: SourceReader, folder: Path, teachers: Teachers | None = None) -> Manifest:
    """Write the splits of the reader's entry, in its direction, and their manifest to an empty folder, then the locks of new sums.

    Sources `translated`, for which `teachers` are needed, come last, so that a fault elsewhere is found first.
    Raises `UserError`: as `SourceReader.open` and `TranslatedSource.open`; exit code 65 also if a split is empty.
    """
    entry, path = reader.found.entry, reader.found.path
    by_model = [(TranslatedSource(source.translated, reader), source) for source in entry.splits.train if source.translated]
    origins: list[Origin] = []
    for split in entry.sources:
        opened = [(reader.open(source), source) for source in entry.sources[split] if not source.translated]
        origins += _write_split(reader, split, opened, folder)
        if not (folder / f"{split}.{reader.source}").stat().st_size and not (split == "train" and by_model):
            raise UserError(f"{path}: {entry.key_of(split)}: holds no sentence pair", "Look at the files that it names.")
    if by_model:
        assert teachers is not None
        origins += _write_split(reader, "train", [(made.open(teachers), source) for made, source in by_model], folder, "ab")
    manifest = Manifest(
        corpus=entry.name,
        source=reader.source,
        target=reader.target,
        licence=entry.licence,
        splits={split: _record(folder, split, reader.direction) for split in entry.sources},
        origin=origins,
        metrics=[*entry.metrics],
    )
    write_json(folder / MANIFEST, manifest.model_dump(exclude_defaults=True))
    reader.fetcher.write_locks()
    return manifest


def _record(folder: Path, split: str, direction: tuple[str, str]) -> SplitRecord:
    files = {}
    for language in direction:
        path = folder / f"{split}.{language}"
        files[language] = SideRecord(sha256=sha256_of(path), lines=sum(1 for _ in read_raw_lines(path)))
    return SplitRecord(pairs=files[direction[0]].lines, files=files)


def _write_split(
    reader: SourceReader, split: str, opened: list[tuple[OpenedSource, Source]], folder: Path, mode: Literal["wb", "ab"] = "wb"
) -> list[Origin]:
    """Write or append opened sources to a split, each pair with its weight and the name of its part, and return their origins."""
    sources = reader.found.entry.sources[split]
    columns = [PAIR_WEIGHTS] if any(source.weight != 1 for source in sources) else []
    columns += [PAIR_PARTS] if any(source.name for source in sources) else []
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{split}.{language}").open(mode)) for language in reader.direction]
        beside = {name: stack.enter_context((folder / name).open(mode)) for name in columns}
        for part, source in opened:
            values = {PAIR_WEIGHTS: f"{source.weight:.17g}", PAIR_PARTS: source.name or UNNAMED_PART}
            for pair in part.pairs:
                for file, line in zip(files, pair, strict=True):
                    file.write(line + b"\n")
                for name, column in beside.items():
                    column.write(f"{values[name]}\n".encode())
    return [{"split": split, **origin} for part, _ in opened for origin in part.origins]
