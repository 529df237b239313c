"""The token ids of sentences as a model reads them: with placeholders for their strings, if its vocabulary has some."""

from transformer_core.corpus.placeholders import SYMBOLS, masked, strings_in
from transformer_core.corpus.text import Pair, normalise
from transformer_core.corpus.tokens.subword import Subword


def strings_of(source: str, subword: Subword) -> list[str] | None:
    """Return the strings of a source for which placeholders stand; None if the vocabulary has none."""
    return strings_in(normalise(source), subword.symbols) if SYMBOLS[0] in subword.symbols else None


def encoded_source(source: str, subword: Subword) -> tuple[list[int], list[str] | None]:
    """Return the token ids of a source, and the strings for which it has placeholders, see `strings_of`."""
    strings = strings_of(source, subword)
    return subword.encode(masked(normalise(source), strings) if strings else source), strings


def encoded(pair: Pair[str], subword: Subword) -> tuple[list[int], list[int]]:
    """Return the token ids of a source and of its translation, with placeholders for the strings of the source."""
    source, strings = encoded_source(pair.source, subword)
    return source, subword.of_target.encode(masked(normalise(pair.target), strings or ()))
