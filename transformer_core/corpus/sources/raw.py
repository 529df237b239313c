"""data/raw: two aligned files for each split of an entry, and a manifest with their sums and origins."""

from collections import Counter
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path

from transformer_core.corpus.sources.catalogue import Source
from transformer_core.corpus.sources.manifest import MANIFEST, Manifest, Origin, SideRecord, SplitRecord
from transformer_core.corpus.sources.readers import OpenedSource, SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource
from transformer_core.corpus.text import PAIR_PARTS, PAIR_WEIGHTS, UNNAMED_PART, Pair, write_lines
from transformer_core.errors import UserError
from transformer_core.files import sha256_of, write_json
from transformer_core.tasks import TARGETS

# A source, and the reader of one of its directions.
_Part = tuple[Source, SourceReader]
# Direction, source and number of pairs of consecutive lines.
_Lines = tuple[tuple[str, str], Source, int]


def write_raw(reader: SourceReader, folder: Path, teachers: Teachers | None = None) -> Manifest:
    """Write the splits of the reader's entry, in its direction, and their manifest to an empty folder, then the locks of new sums.

    Of several directions, each source sentence begins with a tag, and each direction has a test set beside the one of all.
    Sources `translated`, for which `teachers` are needed, come last, so that a fault elsewhere is found first.
    Raises `UserError`: as `SourceReader.open` and `TranslatedSource.open`; exit code 65 also if a split is empty.
    """
    entry, path = reader.found.entry, reader.found.path
    splits = _splits(reader)
    by_model = [part for part in splits["train"] if part[0].translated]
    origins: list[Origin] = []
    lines: dict[str, list[_Lines]] = {}
    for split, parts in splits.items():
        lines[split] = _write_split(reader, split, [part for part in parts if not part[0].translated], folder, origins)
        if not (folder / f"{split}.{reader.source}").stat().st_size and not (split == "train" and by_model):
            raise UserError(f"{path}: {entry.key_of(split)}: holds no sentence pair", "Look at the files that it names.")
    if by_model:
        lines["train"] += _write_split(reader, "train", by_model, folder, origins, teachers)
    _write_weights(lines["train"], entry.temperature, folder / PAIR_WEIGHTS)
    if any(source.name for _, source, _ in lines["train"]):
        names = (repeat(source.name or UNNAMED_PART, pairs) for _, source, pairs in lines["train"])
        write_lines(folder / PAIR_PARTS, chain.from_iterable(names))
    manifest = Manifest(
        corpus=entry.name,
        source=reader.source,
        target=reader.target,
        licence=entry.licence,
        splits={split: _record(folder, split, reader.direction, lines[split]) for split in splits},
        origin=origins,
        metrics=[*entry.metrics],
    )
    write_json(folder / MANIFEST, manifest.model_dump(exclude_defaults=True))
    reader.fetcher.write_locks()
    return manifest


def _splits(reader: SourceReader) -> dict[str, list[_Part]]:
    """Return the parts of each split. Of several directions a test set has a further one for each, and those of `tests` only these.

    In one of several directions, those of `tests` that lack it are left out.
    """
    found: dict[str, list[_Part]] = {}
    for split, sources in reader.found.entry.sources.items():
        parts = [(source, part) for source in sources for part in reader.readers_of(source)]
        several = reader.target == TARGETS
        if split not in reader.found.entry.tests or (parts and not several):
            found[split] = parts
        for source, part in parts if several and split not in ("train", "valid") else ():
            found.setdefault(f"{split}_{'-'.join(part.direction)}", []).append((source, part))
    return found


def _opened(source: Source, reader: SourceReader, teachers: Teachers | None) -> OpenedSource:
    """Open a source, with its tags before each source sentence."""
    if source.translated:
        assert teachers is not None
        opened = TranslatedSource(source.translated, reader).open(teachers)
    else:
        opened = reader.open(source)
    if not (tags := " ".join(reader.tags_of(source))):
        return opened
    pairs = (Pair(f"{tags} ".encode() + pair.source, pair.target) for pair in opened.pairs)
    return OpenedSource(pairs, [{**origin, "tag": tags} for origin in opened.origins])


def _record(folder: Path, split: str, direction: tuple[str, str], lines: list[_Lines]) -> SplitRecord:
    pairs = sum(pairs for _, _, pairs in lines)
    files = {language: SideRecord(sha256=sha256_of(folder / f"{split}.{language}"), lines=pairs) for language in direction}
    directions = [(*of_lines, pairs) for of_lines, _, pairs in lines] if direction[1] == TARGETS else []
    return SplitRecord(pairs=pairs, files=files, directions=directions)


def _write_split(
    reader: SourceReader, split: str, parts: list[_Part], folder: Path, origins: list[Origin], teachers: Teachers | None = None
) -> list[_Lines]:
    """Open sources, append them to a split, add their origins, and return what lines they became."""
    found: list[_Lines] = []
    opened = [(part, _opened(*part, teachers)) for part in parts]
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{split}.{language}").open("ab")) for language in reader.direction]
        for (source, part), content in opened:
            origins += [{"split": split, **origin} for origin in content.origins]
            pairs = 0
            for pair in content.pairs:
                for file, line in zip(files, pair, strict=True):
                    file.write(line + b"\n")
                pairs += 1
            found.append((part.direction, source, pairs))
    return found


def _write_weights(lines: list[_Lines], temperature: float, file: Path) -> None:
    """Write the weight of each pair: its source's, times (n / largest n)^(1/T - 1) for its direction of n weighted pairs."""
    sizes: Counter[tuple[str, str]] = Counter()
    for direction, source, pairs in lines:
        sizes[direction] += source.weight * pairs  # type: ignore[assignment]  # A float.
    largest = max(sizes.values())
    weights = [source.weight * (sizes[direction] / largest) ** (1 / temperature - 1) if pairs else 1 for direction, source, pairs in lines]
    if any(weight != 1 for weight in weights):
        write_lines(file, chain.from_iterable(repeat(f"{weight:.17g}", line[2]) for weight, line in zip(weights, lines, strict=True)))
