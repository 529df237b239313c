"""BLEU of Moses' tokens, as published figures count it: the paper's, and the lowercased one of Multi30k.

The paper's BLEU splits German compounds at their hyphens, as in tensor2tensor's get_ende_bleu.sh: tokenizer.perl, then "rich-text format"
becomes "rich ##AT##-##AT## text format", then multi-bleu.perl. The literature on Multi30k lowercases the text, normalises its punctuation
and tokenises it with Moses' three scripts (W16-3210). Tokens are those of `sacremoses`, a port of the tokeniser of 2017: a full stop after
an abbreviation is not split off, even at the end of a sentence.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU

from transformer_core.evaluation.scoring import Score

# Only English-German was scored in this way; French tokens are not split further.
SPLIT_AT_HYPHENS = frozenset({"de"})
_NO_SMOOTHING = f"smooth:none|sacremoses:{version('sacremoses')}|sacrebleu:{version('sacrebleu')}"  # The end of signatures.
_COMPOUND = re.compile(r"(\S)-(\S)")


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> tuple[float, str]:
    """Return the paper's tokenised BLEU of detokenised text, a sentence each, in percent, and its signature, which is none of sacreBLEU's.

    `language` is a two-letter code, for example "de". Moses has abbreviations for some thirty languages; others are tokenised as English.
    """
    split = "yes" if language in SPLIT_AT_HYPHENS else "no"
    bleu = multi_bleu(moses_tokens(hypotheses, language), moses_tokens(references, language))
    return bleu, f"multi-bleu|nrefs:1|case:mixed|tok:moses-{language}|compounds-split:{split}|{_NO_SMOOTHING}"


def multi30k_lower(hypotheses: Sequence[str], references: Sequence[str], language: str) -> tuple[float, str]:
    """Return the BLEU that papers on Multi30k report, of detokenised text; arguments as in `paper_bleu`."""
    bleu = multi_bleu(multi30k_tokens(hypotheses, language), multi30k_tokens(references, language))
    return bleu, f"multi-bleu|nrefs:1|case:lc|norm:moses-{language}|tok:moses-{language}|{_NO_SMOOTHING}"


_OF_THE_PAPER = "Only for comparison with the paper's Table 2: BLEU of Moses' tokens (of German, with compounds split at hyphens),"
PAPER_BLEU = Score("paper_bleu", "The paper's BLEU", sentence=_OF_THE_PAPER)
_OF_PAPERS = "For comparison with papers on Multi30k: BLEU of lowercased Moses' tokens, without smoothing,"
_LOWERCASED = Score("multi30k_lower", "Multi30k's lowercased BLEU", sentence=_OF_PAPERS, tile="Lowercased BLEU")
# Each score's function. A corpus can ask for all but the paper's in its catalogue entry.
_Computed = Callable[[Sequence[str], Sequence[str], str], tuple[float, str]]
PUBLISHED: dict[Score, _Computed] = {PAPER_BLEU: paper_bleu, _LOWERCASED: multi30k_lower}


def moses_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Return each sentence's tokens as tokenizer.perl writes them, separated by single spaces, with German compounds split.

    Each hyphen between two characters is then a token of its own. As in Perl, matches do not overlap: of "a-b-c" the second is none.
    """
    tokens = _tokenised(sentences, language)
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in tokens] if language in SPLIT_AT_HYPHENS else tokens


def multi30k_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Return each sentence's tokens as lowercase.perl, normalize-punctuation.perl and tokenizer.perl write them in this order."""
    from sacremoses import MosesPunctNormalizer  # type: ignore[import-untyped]  # Imported here because it takes half a second.

    normalise = MosesPunctNormalizer(lang=language).normalize
    return _tokenised((normalise(sentence.lower()) for sentence in sentences), language)


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU in percent of tokens separated by white space, without smoothing: 0 if no sequence of four tokens matches."""
    return float(BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(hypotheses, [references]).score)


def _tokenised(sentences: Iterable[str], language: str) -> list[str]:
    from sacremoses import MosesTokenizer

    tokenise = MosesTokenizer(lang=language).tokenize
    return [tokenise(sentence, return_str=True) for sentence in sentences]
