"""A glossary: the wanted translations of terms. A model need not have learnt it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from transformer_core.corpus.placeholders import masked, restored
from transformer_core.corpus.text import is_unspaced, normalise
from transformer_core.corpus.tokens.subword import Subword, TokenIds
from transformer_core.decoding.beam import Search
from transformer_core.decoding.lines import check_known
from transformer_core.decoding.translator import Done, Hypothesis, Translator
from transformer_core.errors import UserError

_WORD, _CHARACTER = re.compile(r"\w+|[^\w\s]+"), re.compile(r"\S")


class Glossary:
    """Wanted translations of terms. A term is found as whole words, the longest first; one in lower case also with capitals.

    In scripts without spaces it is found anywhere.
    """

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._given = dict(translations)
        terms = sorted(translations, key=len, reverse=True)
        self._translations = [translations[term] for term in terms]
        # A group for each term, whose number leads to the translation.
        groups = [f"((?i:{re.escape(term)}))" if term.islower() else f"({re.escape(term)})" for term in terms]
        self._whole, self._anywhere = (re.compile(pattern) for pattern in (_whole("|".join(groups)), "|".join(groups)))

    def wanted(self, source: str) -> list[str]:
        """Return the translations that a source must have, each once."""
        pattern = self._anywhere if _unspaced(source) else self._whole
        groups = [match.lastindex for match in pattern.finditer(source)]
        return list(dict.fromkeys(self._translations[group - 1] for group in groups if group))

    def as_read(self, subword: Subword) -> "Glossary":
        """Return it as a vocabulary reads and writes its texts. Raises `UserError` (65): a text has a character that it lacks."""
        read = dict[str, str]()
        for term, translation in self._given.items():
            for text, vocabulary in ((term, subword), (translation, subword.of_target)):
                check_known(text, vocabulary, "glossary", "Leave this line out.")
            read[subword.decode(subword.encode(term))] = subword.decode(subword.of_target.encode(translation))
        return Glossary(read)

    def translate(
        self,
        translator: Translator,
        sources: Sequence[TokenIds],
        search: Search,
        batch_tokens: int,
        done: Done = int,
        strings: Sequence[Sequence[str] | None] = (),
    ) -> list[list[Hypothesis]]:
        """Return the translations of each source as `Translator.translate_tokens`, those with the most wanted translations first.

        `strings` are those for which placeholders stand in each source. Raises `UserError` (65): see `as_read`.

        If even the best lacks one, the search is made again for each place of it: with the beginning of a translation up to there, and
        then the wanted one. The scores choose the place.
        """
        subword, wanted = translator.subword, dict[int, list[str]]()
        read = self.as_read(subword)
        results = translator.translate_tokens(sources, search, batch_tokens, done=done)
        for number, (source, own) in enumerate(zip_longest(sources, strings)):
            if terms := read.wanted(restored(subword.decode(source), own or ())):
                wanted[number] = [masked(term, own or ()) for term in terms]
        for _ in range(max(map(len, wanted.values()), default=0)):
            tries = []
            for number, terms in wanted.items():
                results[number] = _ranked(results[number], terms)[: search.beam]
                for term in [term for term in terms if not _has(results[number][0].text, term)][:1]:
                    beginnings = [beginning for hypothesis in results[number] for beginning in _beginnings(hypothesis.text, term)]
                    tries += [(number, beginning) for beginning in dict.fromkeys(beginnings)]
            again, starts = [sources[number] for number, _ in tries], [subword.of_target.encode(beginning)[:-1] for _, beginning in tries]
            for (number, _), found in zip(tries, translator.translate_tokens(again, search, batch_tokens, starts), strict=True):
                results[number] = [*results[number], *found]
        for number, terms in wanted.items():
            results[number] = _ranked(results[number], terms)[: search.beam]
        return results


def glossary_of(lines: Iterable[str], where: str) -> Glossary:
    """Return the glossary of lines of a term, a tab and its translation. Raises `UserError` (65): another line, or none."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        term, *translations = map(normalise, line.split("\t"))
        if not (term and len(translations) == 1 and translations[0]):
            raise UserError(f"{where}:{number}: not a term, a tab and its translation", "Correct the line.")
        found[term] = translations[0]
    if not found:
        raise UserError(f"{where}: no terms", "Write a line for each: the term, a tab and its translation.")
    return Glossary(found)


def _ranked(hypotheses: Sequence[Hypothesis], terms: Sequence[str]) -> list[Hypothesis]:
    """Return different hypotheses, those with the most terms first, then by score."""
    different = {hypothesis.text: hypothesis for hypothesis in sorted(hypotheses, key=lambda hypothesis: hypothesis.score)}
    return sorted(different.values(), key=lambda found: (sum(_has(found.text, term) for term in terms), found.score), reverse=True)


def _beginnings(text: str, term: str) -> Iterator[str]:
    """Yield the beginnings of a translation up to each word, with the term behind."""
    border, space = (_CHARACTER, "") if _unspaced(text + term) else (_WORD, " ")
    for place in (0, *(match.end() for match in border.finditer(text))):
        yield f"{text[:place]}{space}{term}".strip()


def _has(text: str, term: str) -> bool:
    return term in text if _unspaced(text) else re.search(_whole(re.escape(term)), text) is not None


def _whole(pattern: str) -> str:
    return rf"(?<!\w)(?:{pattern})(?!\w)"


def _unspaced(text: str) -> bool:
    return any(map(is_unspaced, text))
