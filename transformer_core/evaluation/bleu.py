"""BLEU of a corpus: sacreBLEU's, which training watches, and the one that the paper's Table 2 holds. Apart from all other scores, so that a
change of those trains no model anew.

The paper's is of Moses' tokens, German compounds split at their hyphens, as tensor2tensor's get_ende_bleu.sh does it: tokenizer.perl,
then "rich-text format" becomes "rich ##AT##-##AT## text format", then multi-bleu.perl. Tokens are those of `sacremoses`, which keeps the
tokeniser as it was in 2017: a full stop behind an abbreviation is not split off at a sentence's end either.
"""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU

# Only English-German was scored in this way; French tokens stay as Moses leaves them.
SPLIT_AT_HYPHENS = frozenset({"de"})
_COMPOUND = re.compile(r"(\S)-(\S)")


class PaperBleu(NamedTuple):
    """The score in percent, and a text that says how it came about and that no sacreBLEU signature can be taken for."""

    score: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU (13a, cased) in percent, as stage evaluate counts it: the score that training watches."""
    found: float = BLEU().corpus_score(hypotheses, [references]).score
    return found


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> PaperBleu:
    """Tokenised BLEU of detokenised text.

    Args:
        hypotheses: a sentence each.
        references: the same number.
        language: of both, by its code of two letters: "de". Moses knows abbreviations of some thirty; others are taken for English.
    """
    split = "yes" if language in SPLIT_AT_HYPHENS else "no"
    versions = f"sacremoses:{version('sacremoses')}|sacrebleu:{version('sacrebleu')}"
    return PaperBleu(
        multi_bleu(moses_tokens(hypotheses, language), moses_tokens(references, language)),
        f"multi-bleu|nrefs:1|case:mixed|tok:moses-{language}|compounds-split:{split}|smooth:none|{versions}",
    )


def moses_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Each sentence's tokens as tokenizer.perl writes them, between single spaces, German compounds split."""
    from sacremoses import MosesTokenizer  # type: ignore[import-untyped]  # Half a second, which only this score should cost.

    tokenise = MosesTokenizer(lang=language).tokenize
    tokens = [tokenise(sentence, return_str=True) for sentence in sentences]
    return [split_compounds(line) for line in tokens] if language in SPLIT_AT_HYPHENS else tokens


def split_compounds(line: str) -> str:
    """Hyphens between two characters as tokens of their own.

    As in Perl, a character between two hyphens belongs to the first alone: "a-b-c" becomes "a ##AT##-##AT## b-c".
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU in percent of tokens between white space, nothing smoothed: 0 where no four tokens in a row are right."""
    found: float = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(hypotheses, [references]).score
    return found
