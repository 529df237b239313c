"""Results for a long text, kept part by part, so that a stopped run continues with the first missing part."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, AnyStr

from tqdm import tqdm

from transformer_core.corpus.text import Pair, write_lines

_PAIRS_PER_SHARD = 8_192
MOST_SENTENCE_TOKENS = 512  # A longer side is not a sentence, and would need the memory of hundreds of sentences.


@dataclass
class Shards:
    """Files of lines in a folder, each named by a hash of everything that its content depends on.

    So a result depends neither on an interruption nor on other shards, and a changed text makes its own shards again and no others.
    """

    folder: Path
    _used: set[Path] = field(default_factory=set)

    def lines(
        self,
        pairs: Iterator[Pair[AnyStr]],
        inputs: Callable[[list[Pair[AnyStr]]], bytes],
        make: Callable[[list[Pair[AnyStr]], int, "tqdm[Any]"], list[str]],
        what: str,
    ) -> Iterator[tuple[Pair[AnyStr], str]]:
        """Yield each pair with its line; at most a shard of pairs is in memory.

        Args:
            inputs: returns all that the lines of a shard's pairs depend on.
            make: makes them, given the pairs and the number of the first from 1; it may count finished pairs on the bar.
            what: the work, for the bar; where there is no terminal, for a line about each shard.
        """
        finished = 0
        with tqdm(desc=what, unit=" lines", disable=None) as bar:
            while shard := list(islice(pairs, _PAIRS_PER_SHARD)):
                lines = self._of_shard(inputs(shard), partial(make, shard, finished + 1, bar))
                finished += len(shard)
                bar.update(finished - bar.n)
                if bar.disable:
                    print(f"{what}: {finished:,} lines are finished", file=sys.stderr, flush=True)
                yield from zip(shard, lines, strict=True)

    def _of_shard(self, inputs: bytes, make: Callable[[], list[str]]) -> list[str]:
        """Return the lines for these inputs: from their file, or else made and written. A file's last line is the sum of the others."""
        path = self.folder / f"{hashlib.sha256(inputs).hexdigest()}.txt"
        self._used.add(path)
        if path.is_file():
            *kept, total = path.read_bytes().decode(errors="replace").split("\n")[:-1] or [""]
            if total == _sum_of(kept):
                return kept
        made = make()
        write_lines(path, [*made, _sum_of(made)])
        return made

    def remove_unused(self) -> None:
        """Remove the files that this object has neither read nor written."""
        for path in set(self.folder.glob("*.txt")) - self._used:
            path.unlink()


def _sum_of(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
