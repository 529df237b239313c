"""data/raw: two aligned files for each split of an entry, and a manifest with their sums and origins."""

from collections import Counter
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Literal

from transformer_core.corpus.sources.holdout import held_out_of, is_usable, sentence_hash
from transformer_core.corpus.sources.manifest import MANIFEST, Manifest, Origin, SideRecord, SplitRecord
from transformer_core.corpus.sources.readers import OpenedSource, SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource
from transformer_core.corpus.text import PAIR_WEIGHTS, read_raw_lines, read_raw_pairs
from transformer_core.errors import UserError
from transformer_core.files import sha256_of, write_json


def write_raw(reader: SourceReader, folder: Path, teachers: Teachers | None = None) -> Manifest:
    """Write the splits of the reader's entry, in its direction, and their manifest to an empty folder, then the locks of new sums.

    Sources `translated`, for which `teachers` are needed, come last: their pairs are not held out, and a fault elsewhere is found first.
    Raises `UserError`: as `SourceReader.open` and `TranslatedSource.open`; exit code 65 also if a split is empty, or if train has too few
    pairs to hold out from.
    """
    entry, path = reader.found.entry, reader.found.path
    by_model = [(TranslatedSource(source.translated, reader), source.weight) for source in entry.splits.train if source.translated]
    origins: list[Origin] = []
    for split in (split for split in entry.sources if split not in entry.holdouts):
        opened = [(reader.open(source), source.weight) for source in entry.sources[split] if not source.translated]
        origins += _write_split(reader, split, opened, folder)
        if not (folder / f"{split}.{reader.source}").stat().st_size and not (split == "train" and by_model):
            raise UserError(f"{path}: {entry.key_of(split)}: holds no sentence pair", "Look at the files that it names.")
    held_out = _hold_out(reader, folder) if entry.holdouts else {}
    if by_model:
        assert teachers is not None
        origins += _write_split(reader, "train", [(made.open(teachers), weight) for made, weight in by_model], folder, "ab")
    manifest = Manifest(
        corpus=entry.name,
        source=reader.source,
        target=reader.target,
        licence=entry.licence,
        held_out=held_out,
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
    reader: SourceReader, split: str, opened: list[tuple[OpenedSource, float]], folder: Path, mode: Literal["wb", "ab"] = "wb"
) -> list[Origin]:
    """Write or append opened sources, each with its weight, to a split, and return their origins."""
    weighted = any(source.weight != 1 for source in reader.found.entry.sources[split])
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{split}.{language}").open(mode)) for language in reader.direction]
        weights = stack.enter_context((folder / PAIR_WEIGHTS).open(mode)) if weighted else None
        for part, weight in opened:
            for pair in part.pairs:
                for file, line in zip(files, pair, strict=True):
                    file.write(line + b"\n")
                if weights:
                    weights.write(b"%.17g\n" % weight)
    return [{"split": split, **origin} for part, _ in opened for origin in part.origins]


def _hold_out(reader: SourceReader, folder: Path) -> dict[str, int]:
    """Move pairs from train to the splits that are held out of it, and return the counts (`Manifest.held_out`).

    For each sentence that `held_out_of` returns, the first pair that `is_usable` is held out. All other pairs of such a sentence are
    removed from train, so that test has no source sentence of train.
    """
    holdouts = reader.found.entry.holdouts
    pairs = read_raw_pairs(*(folder / f"train.{language}" for language in reader.direction))
    split_of = held_out_of(pairs, reader.found.path, reader.source, holdouts)
    counts = _move(folder, split_of, reader.direction)
    return {**{split: counts[split] for split in holdouts}, "left_train": counts["left_train"]}


def _move(folder: Path, split_of: dict[bytes, str], direction: tuple[str, str]) -> Counter[str]:
    """Distribute the pairs of train to splits by the hash of their source sentence, and return the counts."""
    counts: Counter[str] = Counter()
    placed: set[bytes] = set()
    splits = {"train", *split_of.values()}
    with ExitStack() as stack:
        weights = read_raw_lines(folder / PAIR_WEIGHTS) if (folder / PAIR_WEIGHTS).exists() else None
        names = {split: [f"{split}.{language}" for language in direction] for split in splits}
        names["train"] += [PAIR_WEIGHTS] if weights else []
        files = {split: [stack.enter_context((folder / f"{name}.new").open("wb")) for name in names[split]] for split in splits}
        for pair in read_raw_pairs(*(folder / f"train.{language}" for language in direction)):
            row = (*pair, next(weights)) if weights else pair
            sentence = sentence_hash(pair.source)
            split = split_of.get(sentence, "train")
            if split != "train":
                counts["left_train"] += 1
                if sentence in placed or not is_usable(pair):
                    continue
                placed.add(sentence)
            counts[split] += 1
            for file, line in zip(files[split], row, strict=False):  # Held-out pairs have no weight.
                file.write(line + b"\n")
    for name in chain.from_iterable(names.values()):
        (folder / f"{name}.new").replace(folder / name)
    return counts
