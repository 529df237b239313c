"""Corpus BLEU: sacreBLEU's, which training computes in validations, and that of the paper's Table 2.

The module is separate from the other scores, so that DVC does not repeat stage train when those change.

The paper's BLEU counts Moses' tokens, with German compounds split at their hyphens, as in tensor2tensor's get_ende_bleu.sh: tokenizer.perl,
then "rich-text format" becomes "rich ##AT##-##AT## text format", then multi-bleu.perl. Tokens are those of `sacremoses`, a port of the
tokeniser of 2017: a full stop after an abbreviation is not split off, even at the end of a sentence.
"""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU

# Only English-German was scored in this way; French tokens are not split further.
SPLIT_AT_HYPHENS = frozenset({"de"})
_COMPOUND = re.compile(r"(\S)-(\S)")


class PaperBleu(NamedTuple):
    """Score in percent, and a signature of how it was computed, which differs from all of sacreBLEU's."""

    score: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU (13a, cased) in percent, as stage evaluate computes it; validations in training use it."""
    found: float = BLEU().corpus_score(hypotheses, [references]).score
    return found


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> PaperBleu:
    """Return the paper's tokenised BLEU of detokenised text.

    Args:
        hypotheses: one sentence each.
        references: the same number of sentences.
        language: two-letter code of their language, for example "de". Moses has abbreviations for some thirty languages; others are
            tokenised as English.
    """
    split = "yes" if language in SPLIT_AT_HYPHENS else "no"
    versions = f"sacremoses:{version('sacremoses')}|sacrebleu:{version('sacrebleu')}"
    return PaperBleu(
        multi_bleu(moses_tokens(hypotheses, language), moses_tokens(references, language)),
        f"multi-bleu|nrefs:1|case:mixed|tok:moses-{language}|compounds-split:{split}|smooth:none|{versions}",
    )


def moses_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Return each sentence's tokens as tokenizer.perl writes them, separated by single spaces, with German compounds split."""
    from sacremoses import MosesTokenizer  # type: ignore[import-untyped]  # Imported here because it takes half a second.

    tokenise = MosesTokenizer(lang=language).tokenize
    tokens = [tokenise(sentence, return_str=True) for sentence in sentences]
    return [split_compounds(line) for line in tokens] if language in SPLIT_AT_HYPHENS else tokens


def split_compounds(line: str) -> str:
    """Make each hyphen between two characters a token of its own.

    As in Perl, matches do not overlap: "a-b-c" becomes "a ##AT##-##AT## b-c".
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU in percent of tokens separated by white space, without smoothing: 0 if no sequence of four tokens matches."""
    found: float = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(hypotheses, [references]).score
    return found
