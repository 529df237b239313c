"""References that were tokenised or segmented: sacreBLEU would tokenise them once more, and the score would be no BLEU that others have."""

import re
from collections.abc import Sequence
from pathlib import Path

from transformer_core.errors import UserError

# Parted full stops and commas (Chinese and Japanese ones too), Moses' escapes and hyphens, subword marks.
# Parted "?" and ":" are no sign: French writes them so.
_MARK = re.compile(r" [.,\u3001\u3002\uff0c](?: |$)|&(?:apos|quot|amp|lt|gt|#\d+);|@@(?: |$)|@-@|▁")
# At most 0.9% of the lines of forty detokenised files have a mark, and 90% or more of five tokenised ones.
TOO_MANY = 0.1


def marked_lines(lines: Sequence[str]) -> tuple[float, int | None]:
    """The share of the lines with text that look tokenised, from 0 to 1, and the place of the first, from 0."""
    marked = [index for index, line in enumerate(lines) if _MARK.search(line)]
    written = sum(1 for line in lines if line.strip())
    return (len(marked) / written, marked[0]) if marked else (0.0, None)


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Whether a tenth of the lines or more are marked."""
    return marked_lines(lines)[0] >= TOO_MANY


def refuse_tokenised(path: Path, references: Sequence[str]) -> None:
    """Look at the references of a score.

    Raises:
        UserError: exit code 65; a tenth of the lines or more look tokenised.
    """
    share, first = marked_lines(references)
    if first is None or share < TOO_MANY:
        return
    raise UserError(
        f"{path}:{first + 1}: looks tokenised, as {share:.0%} of its lines do, and BLEU is of detokenised text",
        "Detokenise the corpus, or set evaluate.allow_tokenised: true.",
    )
