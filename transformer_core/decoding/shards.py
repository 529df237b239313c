"""Results for a long text, kept part by part, so that a stopped run continues with the first missing part."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transformer_core.corpus.text import write_lines

PAIRS_PER_SHARD = 8_192
# A longer side is not a sentence, and would need the memory of hundreds of sentences.
MOST_SENTENCE_TOKENS = 512


@dataclass
class Shards:
    """Files of lines in a folder, each named by a hash of everything that its content depends on.

    So a result depends neither on an interruption nor on other shards, and a changed text makes its own shards again and no others.
    """

    folder: Path
    _used: set[Path] = field(default_factory=set)

    def lines(self, inputs: bytes, make: Callable[[], list[str]]) -> list[str]:
        """Return the lines for these inputs: from their file, or else made and written. A file's last line is the sum of the others."""
        path = self.folder / f"{hashlib.sha256(inputs).hexdigest()}.txt"
        self._used.add(path)
        kept = _kept(path)
        if kept is not None:
            return kept
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [*made, _sum(made)])
        return made

    def remove_unused(self) -> None:
        """Remove the files that this object has neither read nor written."""
        for path in set(self.folder.glob("*.txt")) - self._used:
            path.unlink()


def _kept(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]
    return lines[:-1] if lines[-1:] == [_sum(lines[:-1])] else None


def _sum(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
