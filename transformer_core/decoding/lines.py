"""Lines of text as they are translated: a long one in parts; and what a user should know of the lines that were read."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sentencex import segment  # type: ignore[import-untyped]  # Alive, about 300 languages, no dependencies; it keeps every character.

from transformer_core.config import MOST_INPUT
from transformer_core.corpus.placeholders import masked, restored
from transformer_core.corpus.text import lacks_spaces, normalise
from transformer_core.corpus.tokens.encoding import encoded_source
from transformer_core.corpus.tokens.subword import UNK, Subword, TokenIds
from transformer_core.decoding.translator import Hypothesis, targets_of
from transformer_core.errors import UserError, configuration_error
from transformer_core.models.directory import ModelConfig
from transformer_core.tasks import is_language, tag_of, without_region

_AFTER_CLAUSE = re.compile(r"[,;:\u2013\u2014\u060c\u061b] |[\u3001\uff0c\uff1b\uff1a]")
_AFTER_WORD = re.compile(" ")
_CHARACTERS_SHOWN = 5


@dataclass(frozen=True)
class Line:
    """The parts of a line, in order."""

    parts: list[TokenIds]  # Token ids with an end token.
    begins: list[bool]  # Whether the part begins a line of its own, after a line feed.
    strings: list[list[str] | None]  # Those of each part for which placeholders stand, see `strings_of`.

    def joined(self, found: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
        """Return the translations of the line from those of its parts: the best ones together, then the second best, and so on.

        Its log-probability is the sum over the parts, its score their mean.
        """
        found = [with_strings(ranked, strings) for ranked, strings in zip(found, self.strings, strict=True)]
        if len(self.parts) == 1:
            return found[0]
        ranks = range(max(map(len, found)))
        return [self._together([ranked[min(rank, len(ranked) - 1)] for ranked in found]) for rank in ranks]

    def _together(self, parts: list[Hypothesis]) -> Hypothesis:
        space, whole = "" if lacks_spaces("".join(part.text for part in parts)) else " ", ""
        for part, begins in zip(parts, self.begins, strict=True):
            between = "\n" if begins else space if part.text and whole and not whole.endswith("\n") else ""
            whole += between + part.text
        scores = [part.score for part in parts if part.tokens]
        mean = sum(scores) / len(scores) if scores else 0.0
        return Hypothesis(whole, mean, sum(part.log_probability for part in parts), sum(part.tokens for part in parts))


class LineReader:
    """Reads lines as token ids; counts unknown characters and long lines.

    A line of more tokens than `most` is translated sentence by sentence. A sentence that is longer still is cut: between clauses, else
    between words, else between characters. The parts of a line depend on that line alone. `marked` returns a text as the model reads it.
    """

    def __init__(self, subword: Subword, language: str, most: int, marked: Callable[[str], str] = str) -> None:
        self._subword, self._language, self._most = subword, without_region(language), most
        self._marked = marked
        self._read = 0
        self._unknown, self._long, self._cut = set[int](), set[int](), set[int]()
        self._characters: Counter[str] = Counter()

    def read(self, text: str) -> Line:
        """Return the parts of the next line; a line feed in it parts lines that are translated one by one."""
        self._read += 1
        tokens, strings = encoded_source(self._marked(text), self._subword)
        if UNK in tokens:
            self._unknown.add(self._read)
            self._characters.update(sorted(self._subword.unknown_characters(masked(normalise(self._marked(text)), strings or ()))))
        if len(tokens) - 1 <= self._most and "\n" not in text:
            return Line([tokens], [False], [strings])
        lines = [list(self._parts(normalise(line))) or [""] for line in text.split("\n")]
        begins = [bool(number) and not place for number, parts in enumerate(lines) for place in range(len(parts))]
        encoded = [encoded_source(self._marked(part), self._subword) for parts in lines for part in parts]
        return Line([tokens for tokens, _ in encoded], begins, [strings for _, strings in encoded])

    def notes(self) -> Iterator[str]:
        """Yield a line of text about the long lines that were read, and one about the unknown characters, if there were any."""
        if self._long:
            cut = f"; a sentence was cut in {self._places(self._cut)}" if self._cut else ""
            yield f"lines of more than {self._most:,} tokens, translated sentence by sentence: {self._places(self._long)}{cut}"
        if self._unknown:
            shown = ", ".join(f"{_shown(character)} in {count:,}" for character, count in self._characters.most_common(_CHARACTERS_SHOWN))
            others = len(self._characters) - _CHARACTERS_SHOWN
            further = f" and {others:,} others" if others > 0 else ""
            fault = f"lines with unknown characters, which are left out: {self._places(self._unknown)}: {shown}{further}"
            yield f"{fault}. Replace them, or train with bpe.byte_fallback: true."

    def _places(self, lines: set[int]) -> str:
        return f"{len(lines):,} of {self._read:,}, the first is line {min(lines):,}"

    def _parts(self, text: str) -> Iterator[str]:
        if self._fits(text):
            yield text
            return
        self._long.add(self._read)
        for sentence in segment(self._language, text):
            yield from self._pieces(sentence.strip())

    def _pieces(self, text: str) -> Iterator[str]:
        if self._fits(text) or len(text) < 2:
            yield text
            return
        self._cut.add(self._read)
        place = _middle(text)
        yield from self._pieces(text[:place].rstrip())
        yield from self._pieces(text[place:].lstrip())

    def _fits(self, text: str) -> bool:
        return len(encoded_source(self._marked(text), self._subword)[0]) - 1 <= self._most


def with_strings(ranked: list[Hypothesis], strings: Sequence[str] | None) -> list[Hypothesis]:
    """Return translations with these strings in the places of their placeholders, see `strings_of`."""
    return ranked if strings is None else [replace(one, made_of=restored(one.text, strings)) for one in ranked]


def check_known(text: str, vocabulary: Subword, place: str, remedy: str) -> None:
    """Raise a `UserError` (65) if a text, empty or from `place`, has a character that a vocabulary lacks."""
    if text and (unknown := vocabulary.unknown_characters(text)):
        raise UserError(f"{place}: {text}: the model has no {' '.join(sorted(unknown))}", remedy)


def to_language(config: ModelConfig, subword: Subword, asked: str | None, option: str) -> Callable[[str], str]:
    """Return the function that tags a text with the language asked for by `option`; that of a model of one direction changes nothing.

    Raises `UserError` (78): a model of several directions has no such target, or none was asked for; or one of one direction has another.
    """
    targets = targets_of(config, subword)
    if asked in ([*targets] if targets else [None, "", config.target]):
        return (lambda text: f"{tag_of(str(asked))} {text}" if normalise(text) else text) if targets else str
    if not targets:
        raise configuration_error(f"{option}: the model translates to {config.target} alone, got {asked}", "Leave it out.")
    fault = f"{option}: the model translates to {', '.join(targets)}"
    raise configuration_error(f"{fault}, got {asked}" if asked else fault, f"Name one, for example {targets[0]}.")


def most_tokens(config: ModelConfig, positions: int | None, asked: int | None = None) -> int:
    """Return the most tokens of a part: as asked for, or as `longest_source` of the training; what the model has positions for.

    The output of another task than translation, such as a tree, does not come together from those of parts.
    """
    longest = config.longest_source if is_language(config.target) else None
    most = asked or min(longest or MOST_INPUT, MOST_INPUT)
    return most if positions is None else min(most, positions - 1)


def _middle(text: str) -> int:
    """Return the border of clauses nearest to the middle of a text, else of words, else of characters with their combining marks."""
    for border in (_AFTER_CLAUSE, _AFTER_WORD):
        if places := [found.end() for found in border.finditer(text) if found.end() < len(text)]:
            return min(places, key=lambda place: abs(2 * place - len(text)))
    place = len(text) // 2
    while place < len(text) - 1 and unicodedata.combining(text[place]):
        place += 1
    return place


def _shown(character: str) -> str:
    code = f"U+{ord(character):04X}"
    return f"{character} ({code})" if character.isprintable() else code
