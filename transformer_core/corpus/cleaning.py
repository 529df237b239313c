"""Cleaning: repairs every line, drops the training pairs that are unusable, and counts both.

Validation and test are repaired the same way and never filtered: line i of theirs stays line i, whatever it is.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from transformer_core.config import Clean, Section
from transformer_core.corpus.text import REPAIRS, aligned, decode_line, read_pairs, read_raw_lines, write_pairs
from transformer_core.errors import UserError
from transformer_core.files import write_json

REPORT = "report.json"
INVALID_UTF8 = "invalid_utf8"
EXAMPLES = 5
_EXAMPLE_CHARACTERS = 300

Pair = tuple[str, str]
Counts = dict[str, int]
# Says of a repaired pair whether it is to be dropped.
Rule = Callable[[str, str], bool]


class SplitReport(Section):
    """Validation or test: how many pairs, how many with an empty side (they stay), how many lines each repair changed."""

    pairs: int
    empty: int
    repaired: Counts


class CleaningReport(Section):
    """report.json. `dropped` counts pairs by the first rule that dropped them, `repaired` counts lines; examples are repaired text."""

    pairs_in: int
    dropped: Counts
    repaired: Counts
    pairs_out: int
    examples: dict[str, list[Pair]]
    splits: dict[str, SplitReport]


def clean_corpus(raw: Path, folder: Path, source: str, target: str, settings: Clean) -> CleaningReport:
    """Clean the three splits of `raw` into an empty `folder`, with report.json.

    Memory: 16 bytes and a set entry for each kept pair, where duplicates are dropped.

    Raises:
        UserError: exit code 65; a missing file, sides of unequal length, invalid UTF-8 (unless training pairs with it are to be
            dropped), or no training pair left.
    """
    cleaner = _Cleaner(settings)
    train = raw / f"train.{source}", raw / f"train.{target}"
    pairs_out = write_pairs(folder / f"train.{source}", folder / f"train.{target}", cleaner.kept(*train))
    if not pairs_out:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in cleaner.dropped.items() if count)
        raise UserError(f"{train[0]}: cleaning leaves none of {cleaner.pairs_in:,} pairs (dropped: {counts})", "Loosen section clean.")
    report = CleaningReport(
        pairs_in=cleaner.pairs_in,
        dropped=cleaner.dropped,
        repaired=cleaner.repaired,
        pairs_out=pairs_out,
        examples=cleaner.examples,
        splits={split: _repair_split(raw, folder, split, source, target) for split in ("valid", "test")},
    )
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


class _Cleaner:
    """Cleans the training pairs, once, and counts on the way."""

    def __init__(self, settings: Clean) -> None:
        self.drop_invalid = settings.on_invalid_utf8 == "drop"
        self.rules = rules(settings)
        self.pairs_in = 0
        self.dropped: Counts = dict.fromkeys((*([INVALID_UTF8] if self.drop_invalid else []), *self.rules), 0)
        self.repaired = _no_repairs()
        self.examples: dict[str, list[Pair]] = {}

    def kept(self, source: Path, target: Path) -> Iterator[Pair]:
        """The pairs of two files that no rule drops, repaired."""
        lines = aligned(read_raw_lines(source), read_raw_lines(target), source, target)
        # disable=None: no bar where there is no terminal.
        for number, (left, right) in enumerate(tqdm(lines, desc="clean", unit=" pairs", leave=False, disable=None), start=1):
            self.pairs_in = number
            try:
                pair = _decoded(left, source, number), _decoded(right, target, number)
            except UserError:
                if not self.drop_invalid:
                    raise
                self._drop(INVALID_UTF8, (left.decode(errors="replace"), right.decode(errors="replace")))
                continue
            pair = _repaired(pair[0], self.repaired), _repaired(pair[1], self.repaired)
            rule = next((name for name, drops in self.rules.items() if drops(*pair)), None)
            if rule is None:
                yield pair
            else:
                self._drop(rule, pair)

    def _drop(self, rule: str, pair: Pair) -> None:
        self.dropped[rule] += 1
        examples = self.examples.setdefault(rule, [])
        if len(examples) < EXAMPLES:
            examples.append((_shortened(pair[0]), _shortened(pair[1])))


def rules(settings: Clean) -> dict[str, Rule]:
    """The rules that a pair must pass, by name, in the order they are asked; a pair counts for the first that drops it."""
    chosen: dict[str, Rule] = {
        "empty": lambda source, target: not (source and target),
        "too_long": lambda source, target: max(_words(source), _words(target)) > settings.max_words,
        "ratio": lambda source, target: _ratio(_words(source), _words(target)) > settings.max_ratio,
    }
    if settings.drop_copies:
        chosen["copy"] = lambda source, target: source == target
    if settings.drop_duplicates:
        chosen["duplicate"] = _duplicates()
    return chosen


def _duplicates() -> Rule:
    seen: set[bytes] = set()

    def drops(source: str, target: str) -> bool:
        digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=16).digest()
        if digest in seen:
            return True
        seen.add(digest)
        return False

    return drops


def _words(text: str) -> int:
    """Words of a repaired text, which has single spaces between them and none at the edges."""
    return text.count(" ") + 1


def _ratio(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


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
