"""The rules that drop training pairs: rules for one pair alone, and repeats."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import Clean
from transformer_core.corpus.text import Pair
from transformer_core.errors import configuration_error
from transformer_core.tasks import is_language, without_region

REPEATED_TARGET = "repeated_target"
_LEAST_SHARE_OF_A_SCRIPT = 0.01
_MOST_FOREIGN = 0.5
# The ratio of shorter sentences says little: a greeting of three characters may be translated by twelve.
_FEW_CHARACTERS = 20
# Of py3langid: it is then wrong with 0 to 1 of 5,000 right sentences of Tatoeba or of news, and misses up to a third of short wrong ones.
_SURE = 0.9
# Languages that are told apart too rarely, and the code for text in none, such as numbers.
_ALIKE = ({"no", "nb", "nn"}, {"hr", "bs", "sr"}, {"id", "ms"}, {"zh", "yue", "wuu"}, {"ar", "ary", "arz"})
_NO_LANGUAGE = "zxx"

# Returns whether to drop a repaired pair, given the number of words (`length_in_words`) of each side.
Rule = Callable[[Pair[str], tuple[int, int]], bool]


class EvaluationSide(NamedTuple):
    """One side of validation and test: its language, its sentences, case-folded, and the scripts of its letters."""

    language: str
    sentences: frozenset[str]
    scripts: frozenset[str]

    @classmethod
    def of(cls, language: str, texts: Iterable[str]) -> "EvaluationSide":
        """Collect the texts of one side; a script counts if at least one in a hundred letters is from it."""
        texts = list(texts)
        letters: Counter[str] = Counter()
        for character, count in Counter(chain.from_iterable(texts)).items():
            if script := _script(character):
                letters[script] += count
        least = _LEAST_SHARE_OF_A_SCRIPT * letters.total()
        return cls(language, frozenset(map(str.casefold, texts)), frozenset(script for script, count in letters.items() if count >= least))


def rules(
    settings: Clean, source: EvaluationSide, target: EvaluationSide, median: float | None, kept_out: Container[Pair[str]]
) -> dict[str, Rule]:
    """Return the rules for one pair alone, by name, in the order of application; `median` is that of `length_ratio` over all pairs.

    `kept_out` are the pairs that `drop_overlap: pairs` drops. Rule foreign is left out if the sentences of a side have no letters, because
    then no script is known to be one of its language.
    """
    chosen: dict[str, Rule] = {"empty": lambda pair, _: not (pair.source and pair.target)}
    if (most := settings.max_words) is not None:
        chosen["too_long"] = lambda _, words: max(words) > most
    if (ratio := settings.max_ratio) is not None:
        chosen["ratio"] = lambda _, words: max(words) / min(words) > ratio
    if (factor := settings.max_length_ratio) is not None and median is not None:
        bounds = median / factor, median * factor
        chosen["length_ratio"] = lambda pair, _: (
            max(map(len, pair)) >= _FEW_CHARACTERS and not bounds[0] <= len(pair.source) / len(pair.target) <= bounds[1]
        )
    if settings.drop_copies:
        chosen["copy"] = lambda pair, _: pair.source == pair.target
    if settings.drop_foreign and source.scripts and target.scripts:
        source_is_foreign, target_is_foreign = _foreign_to(source.scripts), _foreign_to(target.scripts)
        chosen["foreign"] = lambda pair, _: source_is_foreign(*pair) or target_is_foreign(*reversed(pair))
    if settings.drop_other_languages:
        source_is_other, target_is_other = map(_in_other_language_than, (source.language, target.language))
        chosen["other_language"] = lambda pair, _: source_is_other(pair.source) or target_is_other(pair.target)
    if settings.drop_overlap == "pairs":
        chosen["overlap"] = lambda pair, _: pair in kept_out
    elif settings.drop_overlap:
        chosen["overlap"] = lambda pair, _: pair.source.casefold() in source.sentences or pair.target.casefold() in target.sentences
    return chosen


def repeats(settings: Clean) -> dict[str, Callable[[str], str]]:
    """Return, by name, the rules that drop repeats: the form of a pair, two lines, in which it equals an earlier one."""
    chosen: dict[str, Callable[[str], str]] = {}
    if settings.drop_duplicates:
        chosen["duplicate"] = str
    if settings.drop_case_duplicates:
        chosen["case_duplicate"] = str.casefold
    if settings.drop_near_duplicates:
        chosen["near_duplicate"] = _plain
    if settings.drop_repeated_targets and not settings.score_by and all(scorer.part for scorer in settings.scorers):
        chosen[REPEATED_TARGET] = lambda both: both.partition("\n")[2]
    return chosen


def _plain(both: str) -> str:
    """Return a pair without case, punctuation and spaces, with 0 for each number; as it is if nothing is left."""
    kept = (letter for letter in _folded(both) if letter == "\n" or unicodedata.category(letter)[0] in "LMN")
    plain = re.sub(r"\d+", "0", "".join(kept))
    return both if plain == "\n" else plain


def digests_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each text. Two of 36 million different texts have the same one with a probability of 4e-5."""
    return np.frombuffer(b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts), "<u8")


def _foreign_to(scripts: frozenset[str]) -> Callable[[str, str], bool]:
    """Return the function that tells whether more than half of a text's letters are from other scripts; it keeps the known characters.

    Words that the other side has, too, such as names, do not count, unless they are all there is.
    """
    native: set[str] = set()

    def is_foreign(text: str, other: str) -> bool:
        strange = set(text) - native
        if not strange:
            return False
        native.update(character for character in strange if not (script := _script(character)) or script in scripts)
        strange -= native
        letters, found = sum(map(str.isalpha, text)), sum(character in strange for character in text)
        if found <= _MOST_FOREIGN * letters or found == letters:
            return found > _MOST_FOREIGN * letters
        words, other = "".join(character if character in strange else " " for character in text).split(), _folded(other)
        return sum(len(word) for word in words if _folded(word) not in other) > _MOST_FOREIGN * letters

    return is_foreign


def _in_other_language_than(language: str) -> Callable[[str], bool]:
    """Return the function that tells whether a text is surely in another language; never, if this one is none, as trees.

    Raises `UserError` (78): py3langid is not installed, or does not know the language.
    """
    if not is_language(language):
        return lambda _: False
    identifier, code = _identifier(), without_region(language)
    own = next((alike for alike in _ALIKE if code in alike), {code})
    if own.isdisjoint(identifier.labels):
        raise configuration_error(f"clean.drop_other_languages: {language} is no language that py3langid knows", "Set it to false.")

    def is_other(text: str) -> bool:
        found, probability = identifier.classify(text)
        return probability >= _SURE and found not in own | {_NO_LANGUAGE}

    return is_other


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    except ImportError:
        remedy = "Install it with: pip install py3langid"
        raise configuration_error("clean.drop_other_languages: py3langid is not installed", remedy) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _script(character: str) -> str:
    """Return the first word of a letter's name in Unicode, as LATIN or CJK; "" if it is not a letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def repeated(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return (items,) whether each item's digest equals an earlier one's."""
    import pandas as pd  # Here, because the workers do without it.

    return pd.Series(digests).duplicated().to_numpy(copy=True)
