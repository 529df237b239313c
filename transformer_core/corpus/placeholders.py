"""Placeholders: symbols in the vocabulary that stand for strings which a translation has as they are, such as addresses, tags and emoji.

The model sees the symbol alone, and learns to copy it; the string takes its place in the output.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from random import Random

from transformer_core.corpus.text import Pair

# The number in a symbol is the place of its string among those of the source sentence.
SYMBOLS = tuple(f"\u27e6{number}\u27e7" for number in range(1, 10))
_SYMBOL = re.compile("\u27e6[1-9]\u27e7")
_EMOJI = "[\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_UNIT = r"(?:%|\u00b0[CF]\b|(?:k?m|cm|mm|km/h|mph|k?g|mg|t|m?l|[kMGT]B|[kMG]?Hz|k?W|kWh|k?V)\b)"
_STRINGS = (
    r"(?:https?|ftp)://[^\s<>\"]*[^\s<>\".,;:!?')\]]",  # addresses
    r"\bwww\.[^\s<>\"]*[^\s<>\".,;:!?')\]]",
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"</?[A-Za-z][^<>]*>",  # tags
    r"\*\*|`",
    r"\$?\{+[^\s{}]+\}+|\[\w+\]",  # placeholders
    r"%(?:\(\w+\)|\d+\$)?[\d.]*[sdfxi]\b",
    r"\\[nrt]|__\w+?__|(?<!\w)[@#$]\w+|(?<!\w):\w+:(?!\w)",
    rf"(?<![\w.,])\d+\s?{_UNIT}",
    r"\bv?\d+(?:[.:/-]\d+){1,3}\b(?![.,]\d)|(?<![\w.,])\d{2,}(?![\w]|[.,]\d)",  # times, dates, versions, numbers
    _SYMBOL.pattern,
    f"{_EMOJI}(?:[\ufe0f\u200d\U0001f3fb-\U0001f3ff]|{_EMOJI})*",
)
_STRING = re.compile("|".join(_STRINGS))
_DECIMAL = re.compile(r"\d+\.\d+")  # It is written otherwise in other languages.
_WORD = re.compile(r"\b[^\W\d_]{2,}\b")
_MOST_ADDED = 3


def strings_in(source: str, tags: Collection[str] = ()) -> list[str]:
    """Return the strings of a source sentence for which symbols stand, in order, without tags at its beginning."""
    found = [string[0] for string in _STRING.finditer(source) if not _DECIMAL.fullmatch(string[0])]
    first = source.split(maxsplit=2)[:2]
    return [string for string in found if string not in first or string not in tags or string in SYMBOLS][: len(SYMBOLS)]


def masked(text: str, strings: Sequence[str]) -> str:
    """Return a text with symbols in the places of these strings; a string that is there twice has two symbols."""
    symbols: dict[str, list[str]] = {}
    for string, symbol in zip(strings, SYMBOLS, strict=False):
        symbols.setdefault(string, []).append(symbol)
    return _STRING.sub(lambda string: symbols[string[0]].pop(0) if symbols.get(string[0]) else string[0], text)


def restored(text: str, strings: Sequence[str]) -> str:
    """Return a text with these strings in the places of their symbols; a symbol of no string is left out."""
    found = dict(zip(SYMBOLS, strings, strict=False))
    return _SYMBOL.sub(lambda symbol: found.get(symbol[0], ""), text)


def with_symbols(pairs: Iterable[Pair[str]], share: float) -> Iterator[Pair[str]]:
    """Yield training pairs with symbols for the strings that both sides have equally often; a share, drawn at random, gets some more."""
    random = Random(1)
    for pair in pairs:
        ours, theirs = (Counter(string[0] for string in _STRING.finditer(text)) for text in pair)
        strings = [string for string in strings_in(pair.source) if ours[string] == theirs[string]]
        drawn = random.random() < share
        yield _with_more(pair, random) if drawn and not ours and not theirs else Pair(*(masked(text, strings) for text in pair))


def _with_more(pair: Pair[str], random: Random) -> Pair[str]:
    """Return a pair with symbols in place of words that both sides have, around these or around all, at the beginning or the end."""
    sides = [*pair]
    words, others = (Counter(_WORD.findall(text)) for text in pair)
    names = [word for word in words if word[0].isupper() and words[word] == others[word] == 1]
    used = 0
    for _ in range(random.randint(1, _MOST_ADDED)):
        first, second = (f"\u27e6{number}\u27e7" for number in (used + 1, used + 2))
        name = names.pop(random.randrange(len(names))) if names and random.random() < 1 / 2 else None
        around = random.random() < 1 / 3
        if name is not None:
            inside = f"{first}{name}{second}" if around else first
            sides = [re.sub(rf"\b{name}\b", inside, text, count=1) for text in sides]
        elif around:
            sides = [f"{first}{text}{second}" for text in sides]
        else:
            space = random.choice((" ", " ", ""))
            place = random.choice((0, -1, None))
            sides = [_with(text, first, space, place) for text in sides]
        used += 2 if around else 1
    numbers = dict(zip(dict.fromkeys(_SYMBOL.findall(sides[0])), SYMBOLS, strict=False))  # In the order of the source.
    return Pair(*(_SYMBOL.sub(lambda symbol: numbers[symbol[0]], text) for text in sides))


def _with(text: str, symbol: str, space: str, place: int | None) -> str:
    """Return a text with a symbol at its beginning (0), before its last character if that is a mark (-1), or at its end (None)."""
    if place == 0:
        return f"{symbol}{space}{text}"
    if place == -1 and not text[-1:].isalnum() and not _SYMBOL.fullmatch(text[-3:]):
        return f"{text[:-1]}{space}{symbol}{text[-1:]}"
    return f"{text}{space}{symbol}"
