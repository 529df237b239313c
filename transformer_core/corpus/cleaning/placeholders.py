"""Training pairs with placeholders, tags, addresses and emoji on both sides, from which a model learns to copy such strings."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from random import Random

from transformer_core.corpus.text import Pair

_WORD = re.compile(r"[^\W\d_]{2,}")
# Emoji are drawn from these code points; each is rare, so that with byte fallback a model learns to copy bytes.
_RANGES = range(0x1F300, 0x1F650), range(0x1F680, 0x1F6C6), range(0x1F900, 0x1FA00)
_EMOJI = [chr(code) for code in chain(*_RANGES) if unicodedata.name(chr(code), "")]
_SEED = 1

# W is a word of the source sentence in small letters, N a number, T the name that is replaced, or else the whole sentence.
_STRINGS = (
    *("{W}", "{W_W}", "{{W}}", "{N}", "%s", "%d", "%N$s", "%(W)s", "${W}", "$W", "[W]", "<W/>", "__W__", ":W:"),
    *("<b>T</b>", "<i>T</i>", "<W>T</W>", "<W N>T</W>", "**T**", '<a href="https://W.org/W">T</a>', "[T](https://W.com)"),
    *("https://W.com", "https://www.W.org/W/W-N", "http://W.net/W?W=N", "www.W.de/W", "W@W.com", "W.W@W.org"),
    *("@W", "#W", "#N", "W.W", "W/W.W"),
    *("N km", "N kg", "N %", "N GB", "NN", "N-N", "N:N", "vN.N.N"),
)
_EMOJI_SHARE = 1 / 5


def with_placeholders(pairs: Iterable[Pair[str]], share: float) -> Iterator[Pair[str]]:
    """Yield the pairs; in a share of them, drawn at random, the same string is in place of a name that both have, or at both ends."""
    random = Random(_SEED)
    for pair in pairs:
        yield _changed(pair, random) if random.random() < share else pair


def _changed(pair: Pair[str], random: Random) -> Pair[str]:
    words, others = Counter(_WORD.findall(pair.source)), Counter(_WORD.findall(pair.target))
    if not (words and others):
        return pair
    emoji = random.random() < _EMOJI_SHARE
    string = "".join(random.choices(_EMOJI, k=random.choice((1, 1, 2)))) if emoji else _filled(random.choice(_STRINGS), [*words], random)
    names = [word for word in words if word[0].isupper() and words[word] == others[word] == 1]
    if names and (not emoji or random.random() < 1 / 2):
        name = random.choice(names)
        changed = [re.sub(rf"\b{name}\b", lambda _: string.replace("T", name), text, count=1) for text in pair]
    else:
        changed = [string.replace("T", text) if "T" in string else f"{text} {string}" for text in pair]
    return Pair(*changed)


def _filled(template: str, words: list[str], random: Random) -> str:
    """Return a string with words and numbers; an element's name is the same at both of its ends."""
    template = re.sub("(?<=<)W|(?<=</)W", random.choice(words).lower(), template)
    return re.sub("[WN]", lambda found: random.choice(words).lower() if found[0] == "W" else str(random.randrange(1, 1000)), template)
