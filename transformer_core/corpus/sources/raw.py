"""data/raw: the splits of an entry as two aligned files each, and a manifest with their sums and origins."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from pydantic import Field

from transformer_core.config import Section, validate_document
from transformer_core.corpus.sources.catalogue import Source
from transformer_core.corpus.sources.holdout import choose, is_usable, listed_sentences, rank
from transformer_core.corpus.sources.readers import Origin, SourceReader
from transformer_core.corpus.text import Pair, read_chunks
from transformer_core.errors import UserError
from transformer_core.files import read_json, sha256_of, write_json

MANIFEST = "manifest.json"


class SideRecord(Section):
    """One file of a split."""

    sha256: str
    lines: int


class SplitRecord(Section):
    """One split; `files` by language."""

    pairs: int
    files: dict[str, SideRecord]


class Manifest(Section):
    """manifest.json.

    `held_out` counts the pairs in valid and test, and in `left_train` all that left train for them. `metrics` is missing from the file if
    the entry names none.
    """

    corpus: str
    source: str
    target: str
    licence: str | None
    synthetic: bool
    splits: dict[str, SplitRecord]
    held_out: dict[str, int]
    origin: list[Origin]
    metrics: list[str] = Field(default_factory=list)


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`. Raises `UserError`: exit code 65 where it is missing."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{path}: no such file", "Make it with: dvc repro download")
    return validate_document(Manifest, read_json(path), path)


def write_raw(reader: SourceReader, folder: Path) -> Manifest:
    """Write all splits of an entry, in one direction, and their manifest to an empty folder.

    Raises:
        UserError: as `SourceReader.open`; exit code 65 also for a split without a pair and for a corpus too small to hold out from.
    """
    entry, path = reader.found.entry, reader.found.path
    splits: dict[str, list[Source]] = dict(entry.splits)
    holdouts = {split: sources[0].holdout for split, sources in splits.items() if sources[0].holdout is not None}
    origins: list[Origin] = []
    for split, sources in splits.items():
        if split in holdouts:
            continue
        origins += _write_split(reader, split, sources, folder)
        if not (folder / f"{split}.{reader.source}").stat().st_size:
            raise UserError(f"{path}: splits.{split}: holds no sentence pair", "Look at the files that it names.")
    manifest = Manifest(
        corpus=entry.name,
        source=reader.source,
        target=reader.target,
        licence=entry.licence,
        synthetic=entry.synthetic,
        held_out=_hold_out(reader, holdouts, folder) if holdouts else {},
        splits={split: _record(folder, split, reader.direction) for split in splits},
        origin=origins,
        metrics=[*entry.metrics],
    )
    write_json(folder / MANIFEST, manifest.model_dump(exclude_defaults=True))
    return manifest


def _record(folder: Path, split: str, direction: tuple[str, str]) -> SplitRecord:
    files = {language: _side_record(folder / f"{split}.{language}") for language in direction}
    return SplitRecord(pairs=files[direction[0]].lines, files=files)


def _side_record(path: Path) -> SideRecord:
    with path.open("rb") as file:
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    return SideRecord(sha256=sha256_of(path), lines=lines)


def _write_split(reader: SourceReader, split: str, sources: list[Source], folder: Path) -> list[Origin]:
    opened = [reader.open(source, split) for source in sources]
    labelled = split != "train" and any(source.synthetic for source in sources)
    with ExitStack() as stack:
        source, target = (stack.enter_context((folder / f"{split}.{language}").open("wb")) for language in reader.direction)
        labels = stack.enter_context((folder / f"{split}.phenomena").open("wb")) if labelled else None
        for pair, label in chain.from_iterable(zip(part.pairs, part.labels, strict=False) for part in opened):
            source.write(pair.source + b"\n")
            target.write(pair.target + b"\n")
            if labels:
                labels.write(label.encode() + b"\n")
    return [{"split": split, **origin} for part in opened for origin in part.origins]


def _hold_out(reader: SourceReader, holdouts: dict[str, int], folder: Path) -> dict[str, int]:
    """Move pairs from train to the splits that are held out of it, and return the counts (`Manifest.held_out`).

    A sentence that `choose` has chosen is held out with its first pair that is empty on no side. All other pairs with such a sentence
    leave train too, or test would hold a sentence that training saw.

    Memory: 16 bytes and a set entry for each different source sentence.
    """
    usable = {rank(pair.source) for pair in _train_pairs(folder, reader.direction) if is_usable(pair)}
    wanted = sum(holdouts.values())
    if wanted >= len(usable):
        raise UserError(
            f"{reader.found.path}: {wanted:,} pairs are to be held out, but train has {len(usable):,} different source sentences",
            "Hold out fewer or add text.",
        )
    split_of = choose(usable, holdouts, listed_sentences(reader.found.path, reader.source))
    counts = _move(folder, split_of, reader.direction)
    return {**{split: counts[split] for split in holdouts}, "left_train": counts["left_train"]}


def _move(folder: Path, split_of: dict[bytes, str], direction: tuple[str, str]) -> Counter[str]:
    """Write the pairs of train to their splits by the rank of their source sentence, and return the counts."""
    counts: Counter[str] = Counter()
    placed: set[bytes] = set()
    splits = {"train", *split_of.values()}
    with ExitStack() as stack:
        files = {
            split: [stack.enter_context((folder / f"{split}.{language}.new").open("wb")) for language in direction] for split in splits
        }
        for pair in _train_pairs(folder, direction):
            sentence = rank(pair.source)
            split = split_of.get(sentence, "train")
            if split != "train":
                counts["left_train"] += 1
                if sentence in placed or not is_usable(pair):
                    continue
                placed.add(sentence)
            counts[split] += 1
            for file, line in zip(files[split], (pair.source, pair.target), strict=True):
                file.write(line + b"\n")
    for split in splits:
        for language in direction:
            (folder / f"{split}.{language}.new").replace(folder / f"{split}.{language}")
    return counts


def _train_pairs(folder: Path, direction: tuple[str, str]) -> Iterator[Pair[bytes]]:
    source, target = (folder / f"train.{language}" for language in direction)
    return chain.from_iterable(chunk.pairs() for chunk in read_chunks(source, target))
