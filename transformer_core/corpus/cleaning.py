"""Cleaning: repairs every line, drops the training pairs that are unusable, and counts both, in bounded memory.

Validation and test are repaired the same way and never filtered: line i of theirs stays line i, whatever it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_core.config import Clean, Section
from transformer_core.corpus.duplicates import Repeats
from transformer_core.corpus.rules import HeldOut, digest, digest_of_any_case, rules, words_in
from transformer_core.corpus.text import REPAIRS, Chunk, decode_line, has_entity, read_chunks, read_lines, read_pairs, write_pairs
from transformer_core.errors import UserError
from transformer_core.files import write_json
from transformer_core.processes import in_order, workers_for

REPORT = "report.json"
INVALID_UTF8 = "invalid_utf8"
EXAMPLES = 5
# Lengths of this many words and more are counted together.
LONGEST_COUNTED = 200
_EXAMPLE_CHARACTERS = 300
_PAIRS_PER_CHUNK = 10_000
_HELD_OUT = ("valid", "test")

Pair = tuple[str, str]
Counts = dict[str, int]


class SplitReport(Section):
    """Validation or test: how many pairs, how many with an empty side (they stay), how many lines each repair changed."""

    pairs: int
    empty: int
    repaired: Counts


class CleaningReport(Section):
    """report.json. `dropped` counts pairs by the first rule that dropped them, `repaired` counts lines; examples are repaired text.

    `entities` counts the lines, kept or not, with a character that is spelled out (&apos;): signs of text that was tokenised before.
    `lengths_in` and `lengths_out` count the sentences of both sides by their words.
    """

    pairs_in: int
    dropped: Counts
    repaired: Counts
    entities: int
    pairs_out: int
    examples: dict[str, list[Pair]]
    lengths_in: dict[str, list[int]]
    lengths_out: dict[str, list[int]]
    splits: dict[str, SplitReport]


def clean_corpus(raw: Path, folder: Path, source: str, target: str, settings: Clean, workers: int | None = None) -> CleaningReport:
    """Clean the three splits of `raw` into an empty `folder`, with report.json; the same bytes with any number of workers.

    Args:
        workers: processes; None takes one for each core, fewer for little text.

    Raises:
        UserError: exit code 65; a missing file, sides of unequal length, invalid UTF-8 (unless training pairs with it are to be
            dropped), or no training pair left.
    """
    splits = {split: _repair_split(raw, folder, split, source, target) for split in _HELD_OUT}
    paths = raw / f"train.{source}", raw / f"train.{target}"
    work = _Work(settings, *paths, *(_held_out(folder, language) for language in (source, target)))
    wanted = workers if workers is not None else workers_for(paths[0])
    train = _Train(folder, source, target, settings)
    # disable=None: no bar where there is no terminal.
    with tqdm(desc="clean", unit=" pairs", leave=False, disable=None) as bar:
        for part in in_order(work, read_chunks(*paths, _PAIRS_PER_CHUNK), wanted):
            train.add(part)
            bar.update(part.pairs_in)
    report = train.report(splits)
    if not report.pairs_out:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
        raise UserError(f"{paths[0]}: cleaning leaves none of {report.pairs_in:,} pairs (dropped: {counts})", "Loosen section clean.")
    write_json(folder / REPORT, report.model_dump())
    return report


def _repair_split(raw: Path, folder: Path, split: str, source: str, target: str) -> SplitReport:
    counts = _no_repairs()
    pairs = [
        (_repaired(left, counts), _repaired(right, counts))
        for left, right in read_pairs(raw / f"{split}.{source}", raw / f"{split}.{target}")
    ]
    write_pairs(folder / f"{split}.{source}", folder / f"{split}.{target}", pairs)
    return SplitReport(pairs=len(pairs), empty=sum(not (left and right) for left, right in pairs), repaired=counts)


def _held_out(folder: Path, language: str) -> HeldOut:
    return HeldOut.of(line for split in _HELD_OUT for line in read_lines(folder / f"{split}.{language}"))


@dataclass
class _Part:
    """What became of a chunk: the text that is left, its digests if they are wanted, and the counts.

    `lengths` is (2, LONGEST_COUNTED + 1): sentences of each side by their words, before anything was dropped.
    """

    pairs_in: int
    lengths: NDArray[np.int64]
    source: bytearray = field(default_factory=bytearray)
    target: bytearray = field(default_factory=bytearray)
    digests: bytearray = field(default_factory=bytearray)
    digests_of_any_case: bytearray = field(default_factory=bytearray)
    dropped: Counts = field(default_factory=dict)
    repaired: Counts = field(default_factory=lambda: _no_repairs())
    entities: int = 0
    examples: dict[str, list[Pair]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Work:
    """What a worker does with a chunk of the training pairs."""

    settings: Clean
    source_path: Path
    target_path: Path
    source: HeldOut
    target: HeldOut

    def __call__(self, chunk: Chunk) -> _Part:
        """Repair the pairs of a chunk and drop what the rules for one pair drop."""
        asked = rules(self.settings, self.source, self.target)
        sides = [side.split(b"\n")[:-1] for side in (chunk.source, chunk.target)]
        part = _Part(len(sides[0]), np.zeros((2, LONGEST_COUNTED + 1), np.int64))
        for number, (left, right) in enumerate(zip(*sides, strict=True), start=chunk.first):
            try:
                pair = _decoded(left, self.source_path, number), _decoded(right, self.target_path, number)
            except UserError:
                if self.settings.on_invalid_utf8 == "stop":
                    raise
                _drop(part, INVALID_UTF8, (left.decode(errors="replace"), right.decode(errors="replace")))
                continue
            pair = _repaired(pair[0], part.repaired), _repaired(pair[1], part.repaired)
            for side, text in enumerate(pair):
                part.lengths[side, min(words_in(text) if text else 0, LONGEST_COUNTED)] += 1
                part.entities += has_entity(text)
            rule = next((name for name, drops in asked.items() if drops(*pair)), None)
            if rule is None:
                self._keep(part, *pair)
            else:
                _drop(part, rule, pair)
        return part

    def _keep(self, part: _Part, source: str, target: str) -> None:
        part.source += source.encode() + b"\n"
        part.target += target.encode() + b"\n"
        both = f"{source}\n{target}"
        if self.settings.drop_duplicates:
            part.digests += digest(both)
        if self.settings.drop_case_duplicates:
            part.digests_of_any_case += digest_of_any_case(both)


class _Train:
    """The training text: written part by part as far as each pair alone decides, then once more without the pairs that came before."""

    def __init__(self, folder: Path, source: str, target: str, settings: Clean) -> None:
        self._languages = source, target
        self._paths = folder / f"train.{source}", folder / f"train.{target}"
        self._first = folder / f"{source}.parts", folder / f"{target}.parts"
        self._files = [path.open("wb") for path in self._first]
        # In the order they are asked; a pair counts for the first.
        wanted = {"duplicate": settings.drop_duplicates, "case_duplicate": settings.drop_case_duplicates}
        self._repeats = {name: Repeats(folder / f"{name}.parts") for name, drops in wanted.items() if drops}
        asked = rules(settings, HeldOut.of(()), HeldOut.of(()))
        drops_invalid = settings.on_invalid_utf8 == "drop"
        self._total = _Part(0, np.zeros((2, LONGEST_COUNTED + 1), np.int64))
        self._total.dropped = dict.fromkeys((*([INVALID_UTF8] if drops_invalid else []), *asked, *self._repeats), 0)

    def add(self, part: _Part) -> None:
        """Take in the next part."""
        for file, text in zip(self._files, (part.source, part.target), strict=True):
            file.write(text)
        for name, digests in (("duplicate", part.digests), ("case_duplicate", part.digests_of_any_case)):
            if name in self._repeats:
                self._repeats[name].add(bytes(digests))
        total = self._total
        total.pairs_in += part.pairs_in
        total.entities += part.entities
        total.lengths += part.lengths
        for counts, more in ((total.dropped, part.dropped), (total.repaired, part.repaired)):
            for name, count in more.items():
                counts[name] += count
        for name, examples in part.examples.items():
            for pair in examples:
                _show(total, name, pair)

    def report(self, splits: dict[str, SplitReport]) -> CleaningReport:
        """Write the text without its repeats, to the end of the work."""
        for file in self._files:
            file.close()
        repeated = {name: repeats.found() for name, repeats in self._repeats.items()}
        lengths = np.zeros((2, LONGEST_COUNTED + 1), np.int64)

        def kept() -> Iterator[Pair]:
            for number, pair in enumerate(read_pairs(*self._first)):
                rule = next((name for name, repeats in repeated.items() if repeats[number]), None)
                if rule is not None:
                    _drop(self._total, rule, pair)
                    continue
                for side, text in enumerate(pair):
                    lengths[side, min(words_in(text), LONGEST_COUNTED)] += 1
                yield pair

        pairs_out = write_pairs(*self._paths, kept())
        for path in self._first:
            path.unlink()
        return CleaningReport(
            pairs_in=self._total.pairs_in,
            dropped=self._total.dropped,
            repaired=self._total.repaired,
            entities=self._total.entities,
            pairs_out=pairs_out,
            examples=self._total.examples,
            lengths_in=dict(zip(self._languages, self._total.lengths.tolist(), strict=True)),
            lengths_out=dict(zip(self._languages, lengths.tolist(), strict=True)),
            splits=splits,
        )


def _drop(part: _Part, rule: str, pair: Pair) -> None:
    part.dropped[rule] = part.dropped.get(rule, 0) + 1
    _show(part, rule, pair)


def _show(part: _Part, rule: str, pair: Pair) -> None:
    examples = part.examples.setdefault(rule, [])
    if len(examples) < EXAMPLES:
        examples.append((_shortened(pair[0]), _shortened(pair[1])))


def _repaired(text: str, counts: Counts) -> str:
    for name, repair in REPAIRS:
        mended = repair(text)
        counts[name] += mended != text
        text = mended
    return text


def _no_repairs() -> Counts:
    return {name: 0 for name, _ in REPAIRS}


def _decoded(line: bytes, path: Path, number: int) -> str:
    return decode_line(line, path, number, "Re-encode the file or set clean.on_invalid_utf8: drop.")


def _shortened(text: str) -> str:
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[: _EXAMPLE_CHARACTERS - 1] + "…"
