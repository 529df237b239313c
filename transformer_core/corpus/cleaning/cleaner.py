"""Repairs every line, drops unusable training pairs, and counts both. Memory: some 30 bytes a pair, most of them to find repeats.

Validation and test are repaired in the same way but not filtered: line i stays line i.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, islice, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_core.config import PARAMS_FILE, Clean
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport, SplitReport
from transformer_core.corpus.cleaning.rules import EvaluationSide, Rule, digests_of, repeated, repeats, rules
from transformer_core.corpus.placeholders import masked, strings_in, with_symbols
from transformer_core.corpus.text import (
    PAIR_PARTS,
    PAIR_WEIGHTS,
    REPAIRS,
    Chunk,
    Pair,
    decode_line,
    length_in_words,
    normalise,
    read_chunks,
    read_lines,
    read_pairs,
    read_raw_lines,
    read_raw_pairs,
    splits_of,
    without_tags,
    write_lines,
    write_pairs,
)
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import write_json
from transformer_core.processes import in_order, workers_for
from transformer_core.tasks import Task, task_of

INVALID_UTF8 = "invalid_utf8"
LOW_SCORE = "low_score"
EXAMPLES = 5
# Longer sentences are counted as having this length, so that a length fits in a byte.
LONGEST_COUNTED = 200
_EXAMPLE_CHARACTERS = 300
_REMEDY = "Re-encode the corpus' own file as UTF-8."  # Not data/raw, which is written anew.

# Source and target language; and of consecutive pairs these and their number.
Direction = tuple[str, str]
Directions = Sequence[tuple[str, str, int]]

# What scores pairs (decoding/dual_cross_entropy.py, or a command): a number for each.
PairScores = Callable[[Iterator[Pair[str]]], Iterator[float]]
# A rule that looks at all pairs that are left: returns which to drop.
Drops = Callable[[Iterator[Pair[str]]], NDArray[np.bool_]]


def clean_corpus(
    raw: Path,
    folder: Path,
    source: str,
    target: str,
    settings: Clean,
    workers: int | str | None = None,
    scored: Mapping[str, Drops] | None = None,
    tags: Collection[str] = (),
    directions: Mapping[str, Directions] | None = None,
    part_of_rule: Mapping[str, str] | None = None,
) -> CleaningReport:
    """Clean the splits of `raw` into an empty `folder`, with report.json; the bytes do not depend on the number of workers.

    Args:
        scored: rules by scores, which are applied last, by name.
        tags: symbols before source sentences; the rules for one pair and `scored` look at a sentence without its tags.
        directions: by split, the directions of its pairs, if `source` and `target` are no languages. Each pair is held to the rules for
            its own, and is compared with the held-out sentences of all.
        part_of_rule: the part of the training text (`PAIR_PARTS`) whose pairs alone a rule of `scored` looks at, by the rule's name.

    Raises `UserError` (65): a missing file, sides of unequal length, invalid UTF-8 (unless it drops training pairs), a target that has no
    symbols (`Task.to_symbols`), or no training pair left.
    """
    held_out = [split for split in splits_of(raw, f".{source}") if split != "train"]
    task = task_of(target)
    splits = {split: _repair_split(raw, folder, split, source, target, task, settings) for split in held_out}
    paths = raw / f"train.{source}", raw / f"train.{target}"
    of_pairs = {split: _DirectionOfPairs((directions or {}).get(split) or [(source, target, 0)]) for split in ("train", *held_out)}
    sides = _evaluation_sides(folder, {split: of_pairs[split] for split in held_out}, source, target, tags)
    if task.to_symbols:  # Targets of train contain the source's words, the symbols of valid and test do not.
        sides[target] = sides[target]._replace(scripts=sides[source].scripts | sides[target].scripts)
    medians = {} if settings.max_length_ratio is None else _median_ratios(*paths, of_pairs["train"], tags)
    read = held_out if settings.drop_overlap == "pairs" else []
    pairs = chain.from_iterable(read_pairs(raw / f"{split}.{source}", raw / f"{split}.{target}") for split in read)
    kept_out = frozenset(Pair(without_tags(normalise(pair.source), tags.__contains__), normalise(pair.target)) for pair in pairs)
    work = _Work(settings, paths, sides, medians, of_pairs["train"], task, frozenset(tags), kept_out)
    train = _Train(folder, work, scored or {}, part_of_rule or {})
    # disable=None: no bar where there is no terminal.
    with tqdm(desc="clean", unit=" pairs", leave=False, disable=None) as bar:
        for part in in_order(work, read_chunks(*paths), workers or workers_for(paths[0])):
            train.add(part)
            bar.update(len(part.words))
    report = train.report(splits)
    if not report.pairs_out:
        counts = {**report.dropped, "by the weights": -report.by_weights}
        why = ", ".join(f"{rule} {count:,}" for rule, count in counts.items() if count)
        remedy = "Loosen section clean; for overlap name other text for valid and test."
        raise UserError(f"{paths[0]}: cleaning leaves none of {report.pairs_in:,} pairs (dropped: {why})", remedy)
    if settings.placeholders:
        for split in ("train", *held_out):
            _write_symbols([folder / f"{split}.{language}" for language in (source, target)], settings.placeholders, tags)
    write_json(folder / CLEANING_REPORT, report.model_dump())
    return report


def _write_symbols(paths: Sequence[Path], share: float, tags: Collection[str]) -> None:
    """Write the pairs of a split again with placeholders; a source of valid or test has them for all strings, as in translating."""
    untagged = partial(without_tags, is_tag=tags.__contains__)
    plain = [path.rename(path.with_suffix(f"{path.suffix}.plain")) for path in paths]
    for side, path in enumerate(paths):
        bare = (Pair(untagged(pair.source), pair.target) for pair in read_pairs(*plain))
        if path.stem == "train":
            changed = (pair[side] for pair in with_symbols(bare, share))
        else:
            changed = (masked(pair[side], strings_in(pair.source)) for pair in bare)
        heads = (source.removesuffix(untagged(source)) if path == paths[0] else "" for source in read_lines(plain[0]))
        write_lines(path, map(str.__add__, heads, changed))
    for path in plain:
        path.unlink()


def worst(share: float, scores: PairScores, pairs: Iterator[Pair[str]]) -> NDArray[np.bool_]:
    """Return which pairs to drop, (pairs,): this share of them, those with the highest scores; among equals the later."""
    order = np.argsort(np.fromiter(scores(pairs), np.float64), kind="stable")
    dropped = np.zeros(len(order), np.bool_)
    dropped[order[len(order) - int(share * len(order)) :]] = True
    return dropped


def below(threshold: float, scores: PairScores, pairs: Iterator[Pair[str]]) -> NDArray[np.bool_]:
    """Return which pairs to drop, (pairs,): those with a score below a threshold."""
    return np.fromiter((score < threshold for score in scores(pairs)), np.bool_)


def repeated_targets(scores: PairScores, pairs: Iterator[Pair[str]]) -> NDArray[np.bool_]:
    """Return which pairs to drop, (pairs,): those whose target another one has with a lower score; among equals the later."""
    digests = [np.zeros(0, np.uint64)]

    def noted() -> Iterator[Pair[str]]:
        for pair in pairs:
            digests.append(digests_of([pair.target]))
            yield pair

    order = np.argsort(np.fromiter(scores(noted()), np.float64), kind="stable")
    dropped = np.zeros(len(order), np.bool_)
    dropped[order] = repeated(np.concatenate(digests)[order])
    return dropped


class _DirectionOfPairs:
    """The direction of each pair by its number, from 1."""

    def __init__(self, directions: Directions) -> None:
        self._directions = [(source, target) for source, target, _ in directions]
        self._ends = np.cumsum([pairs for _, _, pairs in directions])[:-1].tolist()
        self.all = list(dict.fromkeys(self._directions))

    def of(self, number: int) -> Direction:
        return self._directions[bisect_left(self._ends, number)]


def _evaluation_sides(
    folder: Path, splits: Mapping[str, _DirectionOfPairs], source: str, target: str, tags: Collection[str]
) -> dict[str, EvaluationSide]:
    """Return the side of each language, whichever side of a pair it is; a test set of one direction is also in that of all."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for split, directions in splits.items():
        for number, pair in enumerate(read_pairs(folder / f"{split}.{source}", folder / f"{split}.{target}"), start=1):
            left, right = directions.of(number)
            texts[left].append(without_tags(pair.source, tags.__contains__))
            texts[right].append(pair.target)
    languages = {language for directions in splits.values() for direction in directions.all for language in direction}
    return {language: EvaluationSide.of(language, texts[language]) for language in sorted(languages)}


def _median_ratios(source: Path, target: Path, directions: _DirectionOfPairs, tags: Collection[str]) -> dict[Direction, float]:
    """Return, by direction, the median ratio of a source's characters to its target's; of those with a pair that has text on both sides."""
    ratios: defaultdict[Direction, array[float]] = defaultdict(lambda: array("f"))
    lines = zip(read_raw_lines(source), read_raw_lines(target), strict=False)  # Their number is checked later.
    for number, pair in enumerate(lines, start=1):
        left, right = (line.decode(errors="replace") for line in pair)
        if (left := without_tags(left, tags.__contains__)) and right:
            ratios[directions.of(number)].append(len(left) / len(right))
    return {direction: float(np.median(found)) for direction, found in ratios.items()}


def _repair_split(raw: Path, folder: Path, split: str, source: str, target: str, task: Task, settings: Clean) -> SplitReport:
    counts: Counter[str] = Counter()
    paths = raw / f"{split}.{source}", raw / f"{split}.{target}"
    pairs = []
    for number, pair in enumerate(read_raw_pairs(*paths), start=1):
        texts = [decode_line(line, path, number, _REMEDY) for line, path in zip(pair, paths, strict=True)]
        pairs.append(_learnt(Pair(*(normalise(text, counts) for text in texts)), task, settings, paths[1], number))
    write_pairs(folder / f"{split}.{source}", folder / f"{split}.{target}", pairs)
    return SplitReport(pairs=len(pairs), empty=sum(not (left and right) for left, right in pairs), repaired=_by_repair(counts))


@dataclass
class _Tally:
    """Counts of dropped pairs and repaired lines, and examples of dropped pairs."""

    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def drop(self, rule: str, pairs: Iterable[tuple[str, str]], count: int) -> None:
        """Count dropped pairs, one at least, and keep the first `EXAMPLES` of a rule."""
        self.dropped[rule] += count
        examples = self.examples.setdefault(rule, [])
        for pair in islice(pairs, EXAMPLES - len(examples)):
            source, target = (text if len(text) <= _EXAMPLE_CHARACTERS else f"{text[: _EXAMPLE_CHARACTERS - 1]}…" for text in pair)
            examples.append((source, target))

    def add(self, other: "_Tally") -> None:
        """Add the counts and examples of later pairs."""
        self.repaired += other.repaired
        for rule, pairs in other.examples.items():
            self.drop(rule, pairs, other.dropped[rule])


@dataclass
class _Part:
    """The result for a chunk: words of each pair (pairs, 2), at most `LONGEST_COUNTED`; whether all rules for one pair keep it (pairs,);
    the kept lines of both sides; and the digests of kept pairs by each rule that drops repeats."""

    words: NDArray[np.uint8]
    kept: NDArray[np.bool_]
    text: tuple[bytes, bytes] = b"", b""
    digests: dict[str, NDArray[np.uint64]] = field(default_factory=dict)
    tally: _Tally = field(default_factory=_Tally)


@dataclass(frozen=True)
class _Work:
    """The function that workers apply to a chunk of the training pairs."""

    settings: Clean
    paths: tuple[Path, Path]
    sides: Mapping[str, EvaluationSide]
    medians: Mapping[Direction, float]
    directions: _DirectionOfPairs
    task: Task
    tags: frozenset[str]
    kept_out: frozenset[Pair[str]]  # Pairs of valid and test, where whole pairs alone are dropped.

    def rules_for(self, direction: Direction) -> dict[str, Rule]:
        """Return the rules for pairs of a direction."""
        source, target = (self.sides.get(language) or EvaluationSide.of(language, ()) for language in direction)
        return rules(self.settings, source, target, self.medians.get(direction), self.kept_out)

    def __call__(self, chunk: Chunk) -> _Part:
        """Repair the pairs of a chunk and apply the rules for one pair."""
        asked = {direction: self.rules_for(direction) for direction in self.directions.all}
        part = _Part(np.zeros((len(chunk.source), 2), np.uint8), np.zeros(len(chunk.source), np.bool_))
        kept: list[Pair[str]] = []
        for index, raw_pair in enumerate(map(Pair, chunk.source, chunk.target)):
            pair = self._repaired(part.tally, raw_pair, chunk.first + index)
            if pair is None:
                continue
            bare = Pair(without_tags(pair.source, self.tags.__contains__), pair.target)
            words = length_in_words(bare.source), length_in_words(bare.target)
            part.words[index] = min(words[0], LONGEST_COUNTED), min(words[1], LONGEST_COUNTED)
            own = asked[self.directions.of(chunk.first + index)]
            rule = next((name for name, drops in own.items() if drops(bare, words)), None)
            if rule is None:
                part.kept[index] = True
                kept.append(_learnt(pair, self.task, self.settings, self.paths[1], chunk.first + index))
            else:
                part.tally.drop(rule, [pair], 1)
        part.text = "".join([f"{pair.source}\n" for pair in kept]).encode(), "".join([f"{pair.target}\n" for pair in kept]).encode()
        both = [f"{pair.source}\n{pair.target}" for pair in kept]
        part.digests = {rule: digests_of(map(form, both)) for rule, form in repeats(self.settings).items()}
        return part

    def _repaired(self, tally: _Tally, pair: Pair[bytes], number: int) -> Pair[str] | None:
        """Return the pair as repaired text; None if it is dropped because it is not valid UTF-8."""
        remedy = f"{_REMEDY.removesuffix('.')}, or set clean.on_invalid_utf8: drop."
        try:
            source = decode_line(pair.source, self.paths[0], number, remedy)
            target = decode_line(pair.target, self.paths[1], number, remedy)
        except UserError:
            if self.settings.on_invalid_utf8 == "stop":
                raise
            tally.drop(INVALID_UTF8, [Pair(*(line.decode(errors="replace") for line in pair))], 1)
            return None
        return Pair(normalise(source, tally.repaired), normalise(target, tally.repaired))


class _Train:
    """The training text: written part by part after the rules for one pair, then again without repeats."""

    def __init__(self, folder: Path, work: _Work, scored: Mapping[str, Drops], part_of_rule: Mapping[str, str]) -> None:
        self._work, self._scored, self._part_of_rule = work, scored, part_of_rule
        self._paths = [folder / path.name for path in work.paths]
        self._all = [folder / f"{path.name}.all" for path in work.paths]
        self._files = [path.open("wb") for path in self._all]
        self._parts = [work(Chunk(1, [], []))]
        self._tally = _Tally()

    def add(self, part: _Part) -> None:
        for file, text in zip(self._files, part.text, strict=True):
            file.write(text)
        self._tally.add(part.tally)
        self._parts.append(replace(part, text=(b"", b""), tally=_Tally()))

    def report(self, splits: dict[str, SplitReport]) -> CleaningReport:
        """Write the text without its repeats and its worst pairs, and return the report; nothing can be added afterwards."""
        for file in self._files:
            file.close()
        work, languages = self._work, [path.suffix.removeprefix(".") for path in self._paths]
        words, kept = (np.concatenate([getattr(part, name) for part in self._parts]) for name in ("words", "kept"))
        left = np.ones(np.count_nonzero(kept), np.bool_)
        # The rules in the order in which they are applied; a pair counts for the first.
        invalid = [INVALID_UTF8] if work.settings.on_invalid_utf8 == "drop" else []
        for_one_pair = dict.fromkeys(chain.from_iterable(map(work.rules_for, work.directions.all)))
        for name in repeats(work.settings):
            found = left.copy()  # Repeats among the pairs that are left: one that is dropped has none.
            found[left] = repeated(np.concatenate([part.digests[name] for part in self._parts])[left])
            self._drop(name, found, left)
        for name, drops in self._scored.items():
            scored = left & self._of_part(self._part_of_rule.get(name), kept)
            pairs = compress(read_pairs(*self._all), scored)
            found = np.zeros(len(left), np.bool_)
            found[scored] = drops(Pair(without_tags(pair.source, work.tags.__contains__), pair.target) for pair in pairs)
            self._drop(name, found, left)
        times = self._times(left, kept)
        for path, everything in zip(self._paths, self._all, strict=True):
            with everything.open("rb") as lines, path.open("wb") as file:
                file.writelines(chain.from_iterable(map(repeat, lines, times.tolist())))
            everything.unlink()
        if (names := work.paths[0].with_name(PAIR_PARTS)).exists():
            of_kept = compress(read_lines(names), kept)
            write_lines(self._paths[0].with_name(PAIR_PARTS), chain.from_iterable(map(repeat, of_kept, times.tolist())))
        return CleaningReport(
            pairs_in=len(kept),
            dropped={rule: self._tally.dropped[rule] for rule in (*invalid, *for_one_pair, *repeats(work.settings), *self._scored)},
            repaired=_by_repair(self._tally.repaired),
            by_weights=int(times.sum() - left.sum()),
            pairs_out=int(times.sum()),
            examples=self._tally.examples,
            lengths_in=dict(zip(languages, _histograms(words), strict=True)),
            lengths_out=dict(zip(languages, _histograms(np.repeat(words[kept], times, axis=0)), strict=True)),
            splits=splits,
        )

    def _drop(self, rule: str, found: NDArray[np.bool_], left: NDArray[np.bool_]) -> None:
        """Drop those of the pairs that are left which a rule has found, and keep some as examples."""
        found &= left
        left &= ~found
        if found.any():
            self._tally.drop(rule, compress(read_pairs(*self._all), found), int(found.sum()))

    def _of_part(self, part: str | None, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the kept pairs are of a part of the training text, or all. Raises `UserError` (78): it has no such part."""
        if part is None:
            return np.ones(np.count_nonzero(kept), np.bool_)
        names = self._work.paths[0].with_name(PAIR_PARTS)
        of_kept = compress(read_lines(names), kept) if names.exists() else ()
        found = np.fromiter((name == part for name in of_kept), np.bool_)
        if not found.any():
            remedy = "Give its sources a `name` (corpora/README.md), or correct `part`."
            raise configuration_error(f"{PARAMS_FILE}: clean.scorers: the training pairs have no part {part!r}", remedy)
        return found

    def _times(self, left: NDArray[np.bool_], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how often each pair is written: 0 or 1 without weights; with weight w each w times, or every 1/w-th if w is below 1."""
        times = left.astype(np.int64)
        if (given := self._work.paths[0].with_name(PAIR_WEIGHTS)).exists():
            # Rounded, because ten times 0.1 must be 1.
            times[left] = np.diff(np.floor(np.cumsum(np.loadtxt(given, ndmin=1)[kept][left]).round(6)), prepend=0)
        return times


def _learnt(pair: Pair[str], task: Task, settings: Clean, path: Path, number: int) -> Pair[str]:
    """Return a pair as models learn it: line `number`, its target from the file at `path`. Raises `UserError` (65) as `to_symbols`."""
    if task.to_symbols is None:
        return pair
    return Pair(pair.source, task.to_symbols(pair, path, number, settings.tree_order, settings.tree_tags))


def _histograms(words: NDArray[np.uint8]) -> list[list[int]]:
    """Count the sentences of each side by their words: (2, LONGEST_COUNTED + 1) from (pairs, 2)."""
    return [np.bincount(side, minlength=LONGEST_COUNTED + 1).tolist() for side in words.T]


def _by_repair(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name, _ in REPAIRS}
