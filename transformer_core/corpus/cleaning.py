"""Cleaning: repairs every line, drops the training pairs that are unusable, and counts both, in bounded memory.

Validation and test are repaired the same way and never filtered: line i of theirs stays line i, whatever it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_core.config import TREES, Clean, Section
from transformer_core.corpus.duplicates import Repeats
from transformer_core.corpus.rules import HeldOut, Sides, digest, rules, words_in
from transformer_core.corpus.text import (
    REPAIRS,
    Chunk,
    decode_line,
    has_entity,
    is_normal,
    read_chunks,
    read_lines,
    read_pairs,
    write_pairs,
)
from transformer_core.corpus.trees import linearised, read_tree, words
from transformer_core.errors import UserError
from transformer_core.files import write_json
from transformer_core.processes import in_order, workers_for

REPORT = "report.json"
INVALID_UTF8 = "invalid_utf8"
EXAMPLES = 5
# Lengths of this many words and more are counted together; a byte holds them.
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

    Where the target is `tree`, bracketed trees become the symbols that stand for them (`trees.linearised`) after all rules have been asked.

    Args:
        workers: processes; None takes one for each core, fewer for little text.

    Raises:
        UserError: exit code 65; a missing file, sides of unequal length, invalid UTF-8 (unless training pairs with it are to be
            dropped), a target that is no tree over the source's words where it should be, or no training pair left.
    """
    splits = {split: _repair_split(raw, folder, split, source, target) for split in _HELD_OUT}
    paths = raw / f"train.{source}", raw / f"train.{target}"
    form = Symbols(paths[1]) if target == TREES else _unchanged
    work = _Work(settings, *paths, _held_out(folder, source), _held_out(folder, target), form)
    wanted = workers if workers is not None else workers_for(paths[0])
    train = _Train(folder, source, target, settings)
    # disable=None: no bar where there is no terminal.
    with tqdm(desc="clean", unit=" pairs", leave=False, disable=None) as bar:
        for part in in_order(work, read_chunks(*paths, _PAIRS_PER_CHUNK), wanted):
            train.add(part)
            bar.update(len(part.words))
    report = train.report(splits)
    if not report.pairs_out:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items() if count)
        raise UserError(f"{paths[0]}: cleaning leaves none of {report.pairs_in:,} pairs (dropped: {counts})", "Loosen section clean.")
    write_json(folder / REPORT, report.model_dump())
    return report


def _repair_split(raw: Path, folder: Path, split: str, source: str, target: str) -> SplitReport:
    counts = _no_repairs()
    form = Symbols(raw / f"{split}.{target}") if target == TREES else _unchanged
    pairs = []
    for number, (left, right) in enumerate(read_pairs(raw / f"{split}.{source}", raw / f"{split}.{target}"), start=1):
        text = _repaired(left, counts)
        pairs.append((text, form(number, text, _repaired(right, counts))))
    write_pairs(folder / f"{split}.{source}", folder / f"{split}.{target}", pairs)
    return SplitReport(pairs=len(pairs), empty=sum(not (left and right) for left, right in pairs), repaired=counts)


def _held_out(folder: Path, language: str) -> HeldOut:
    return HeldOut.of(line for split in _HELD_OUT for line in read_lines(folder / f"{split}.{language}"))


@dataclass
class _Part:
    """What became of a chunk: the text that is left, its digests if they are wanted, and the counts.

    `words` is (pairs, 2) for all pairs, those from `LONGEST_COUNTED` on as that; `kept` says which of them are left.
    """

    words: NDArray[np.uint8]
    kept: NDArray[np.bool_]
    source: bytes = b""
    target: bytes = b""
    digests: bytes = b""
    digests_of_any_case: bytes = b""
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
    form: Callable[[int, str, str], str]

    def __call__(self, chunk: Chunk) -> _Part:
        """Repair the pairs of a chunk and drop what the rules for one pair drop."""
        asked = rules(self.settings, self.source, self.target)
        lines = [side.split(b"\n")[:-1] for side in (chunk.source, chunk.target)]
        part = _Part(np.zeros((len(lines[0]), 2), np.uint8), np.zeros(len(lines[0]), np.bool_))
        left: list[Sides] = []
        for number, pair in enumerate(zip(*lines, strict=True)):
            sides = self._decoded(part, pair, chunk.first + number)
            if sides is None:
                continue
            part.words[number] = min(sides.source_words, LONGEST_COUNTED), min(sides.target_words, LONGEST_COUNTED)
            part.entities += has_entity(sides.source) + has_entity(sides.target)
            rule = next((name for name, drops in asked.items() if drops(sides)), None)
            if rule is None:
                part.kept[number] = True
                left.append(sides._replace(target=self.form(chunk.first + number, sides.source, sides.target)))
            else:
                _drop(part, rule, (sides.source, sides.target))
        self._keep(part, left)
        return part

    def _decoded(self, part: _Part, pair: tuple[bytes, bytes], number: int) -> Sides | None:
        """The pair as repaired text; None for one that is dropped because it is not valid UTF-8."""
        try:
            texts = _decoded(pair[0], self.source_path, number), _decoded(pair[1], self.target_path, number)
        except UserError:
            if self.settings.on_invalid_utf8 == "stop":
                raise
            _drop(part, INVALID_UTF8, (pair[0].decode(errors="replace"), pair[1].decode(errors="replace")))
            return None
        source, target = _repaired(texts[0], part.repaired), _repaired(texts[1], part.repaired)
        return Sides(source, target, words_in(source), words_in(target))

    def _keep(self, part: _Part, left: list[Sides]) -> None:
        part.source = "".join([f"{pair.source}\n" for pair in left]).encode()
        part.target = "".join([f"{pair.target}\n" for pair in left]).encode()
        both = [f"{pair.source}\n{pair.target}" for pair in left]
        if self.settings.drop_duplicates:
            part.digests = b"".join(map(digest, both))
        if self.settings.drop_case_duplicates:
            part.digests_of_any_case = b"".join(digest(text.casefold()) for text in both)


class _Train:
    """The training text: written part by part as far as each pair alone decides, then once more without the pairs that came before."""

    def __init__(self, folder: Path, source: str, target: str, settings: Clean) -> None:
        self._languages = source, target
        self._paths = [folder / f"train.{language}" for language in self._languages]
        self._all = [folder / f"{language}.parts" for language in self._languages]
        self._files = [path.open("wb") for path in self._all]
        # In the order they are asked; a pair counts for the first.
        wanted = {"duplicate": settings.drop_duplicates, "case_duplicate": settings.drop_case_duplicates}
        self._repeats = {name: Repeats(folder / f"{name}.parts") for name, drops in wanted.items() if drops}
        asked = rules(settings, HeldOut.of(()), HeldOut.of(()))
        drops_invalid = settings.on_invalid_utf8 == "drop"
        self._total = _Part(np.zeros((0, 2), np.uint8), np.zeros(0, np.bool_))
        self._total.dropped = dict.fromkeys((*([INVALID_UTF8] if drops_invalid else []), *asked, *self._repeats), 0)
        self._pairs_in = 0
        self._lengths = np.zeros((2, LONGEST_COUNTED + 1), np.int64)
        self._words: list[NDArray[np.uint8]] = []

    def add(self, part: _Part) -> None:
        """Take in the next part."""
        for file, text in zip(self._files, (part.source, part.target), strict=True):
            file.write(text)
        for name, digests in (("duplicate", part.digests), ("case_duplicate", part.digests_of_any_case)):
            if name in self._repeats:
                self._repeats[name].add(digests)
        self._pairs_in += len(part.words)
        self._lengths += _histograms(part.words)
        self._words.append(part.words[part.kept])
        total = self._total
        total.entities += part.entities
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
        words = np.concatenate([np.zeros((0, 2), np.uint8), *self._words])
        self._words.clear()
        left = np.ones(len(words), np.bool_)
        for name, repeats in self._repeats.items():
            found = repeats.found() & left
            left &= ~found
            self._total.dropped[name] = int(found.sum())
            self._show_repeats(name, np.flatnonzero(found)[:EXAMPLES].tolist())
        for path, everything in zip(self._paths, self._all, strict=True):
            with everything.open("rb") as lines, path.open("wb") as file:
                file.writelines(compress(lines, left))
            everything.unlink()
        return CleaningReport(
            pairs_in=self._pairs_in,
            dropped=self._total.dropped,
            repaired=self._total.repaired,
            entities=self._total.entities,
            pairs_out=int(left.sum()),
            examples=self._total.examples,
            lengths_in=dict(zip(self._languages, self._lengths.tolist(), strict=True)),
            lengths_out=dict(zip(self._languages, _histograms(words[left]).tolist(), strict=True)),
            splits=splits,
        )

    def _show_repeats(self, rule: str, numbers: list[int]) -> None:
        """Show the pairs of these numbers, ascending, of the text that has all."""
        if not numbers:
            return
        for number, pair in enumerate(islice(read_pairs(*self._all), numbers[-1] + 1)):
            if number in numbers:
                _show(self._total, rule, pair)


@dataclass(frozen=True)
class Symbols:
    """Writes a bracketed tree of a file as the symbols that stand for it."""

    path: Path

    def __call__(self, number: int, source: str, tree: str) -> str:
        """The symbols of the tree in line `number`.

        Raises:
            UserError: exit code 65; no tree, or one over other words than the source's.
        """
        try:
            read = read_tree(tree)
        except ValueError as error:
            raise UserError(f"{self.path}:{number}: no tree: {error}", "A tree is (S (NP (DT The) (NN dog)) (VP (VBZ barks)))") from None
        if words(read) != source:
            raise UserError(f"{self.path}:{number}: the tree's words are not those of the source: {words(read)!r}", "Write them alike.")
        return linearised(read)


def _unchanged(_number: int, _source: str, target: str) -> str:
    return target


def _histograms(words: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(2, LONGEST_COUNTED + 1) sentences of each side by their words, of (pairs, 2) words."""
    counted = np.zeros((2, LONGEST_COUNTED + 1), np.int64)
    for start in range(0, len(words), _PAIRS_PER_CHUNK):  # `bincount` takes 8 bytes for each byte.
        for side, some in enumerate(words[start : start + _PAIRS_PER_CHUNK].T):
            counted[side] += np.bincount(some, minlength=LONGEST_COUNTED + 1)
    return counted


def _drop(part: _Part, rule: str, pair: Pair) -> None:
    part.dropped[rule] = part.dropped.get(rule, 0) + 1
    _show(part, rule, pair)


def _show(part: _Part, rule: str, pair: Pair) -> None:
    examples = part.examples.setdefault(rule, [])
    if len(examples) < EXAMPLES:
        examples.append((_shortened(pair[0]), _shortened(pair[1])))


def _repaired(text: str, counts: Counts) -> str:
    if is_normal(text):
        return text
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
