"""BLEU and TER by sacreBLEU, which validations in training, the scores of stage evaluate and comparisons share."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from transformer_core.corpus.text import is_unspaced, lines_lack_spaces, normalise, with_single_spaces
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.tasks import TARGETS, without_region

# Added to the signature of a score whose references were normalised.
NORMALISED = "|ref:normalised"
# TER takes 9 seconds for a line of 400 words and 17 for one of 800.
MOST_TER_WORDS = 200
_LINES_LOOKED_AT = 1000
# Chinese text has few characters of other scripts without spaces, and half of Japanese text is kana.
_CHINESE_SHARE = 0.9
# sacreBLEU's tokenisers for languages that its default does not split into words; WMT uses them.
_TOKENIZERS = {"zh": "zh", "zho": "zh", "cmn": "zh", "ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab", "kor": "ko-mecab"}


def tokenizer_of(language: str, wanted: str | None = None) -> str:
    """Return the name of sacreBLEU's tokeniser for text in a language: the wanted one, else that of WMT; empty if the text decides."""
    return wanted or _TOKENIZERS.get(without_region(language), "")


def tokenizer_in(signature: str) -> str:
    """Return the name of the tokeniser in a signature of sacreBLEU; empty if there is none."""
    found = re.search(r"\|tok:(ja-mecab|ko-mecab|[^|]+)", signature)
    return found[1] if found else ""


def tokenizer_for(references: Path, signature: str) -> str:
    """Return the tokeniser for a test set: that in the signature of the main one, but for one of several directions its language's."""
    found = re.fullmatch(r".*_[a-z]{2,3}(?:[-_][A-Z]\w+?)*-(\w[\w-]*)", references.stem)
    return tokenizer_of(found[1]) if found and references.suffix == f".{TARGETS}" else tokenizer_in(signature)


def bleu_metric(references: Sequence[str], tokenizer: str = "") -> BLEU:
    """Return cased BLEU with a tokeniser of sacreBLEU, or else with that for these references; its signature names it.

    sacreBLEU's default, 13a, splits at spaces and punctuation. References without spaces between words are split into characters: Chinese
    by sacreBLEU's `zh`, others by `char`. `force` turns off its warning about text that looks tokenised, which stage evaluate refuses.

    Raises `UserError`: 78, the tokeniser's packages are not installed; 69, its model cannot be downloaded.
    """
    if tokenizer:
        try:
            return BLEU(tokenize=tokenizer, force=True)
        except RuntimeError:
            remedy = f"Install them with: pip install 'sacrebleu[{tokenizer[:2]}]'. Or take evaluate.tokenize: char, or --tokenize char"
            raise configuration_error(f"BLEU: {tokenizer} needs packages that are not installed", remedy) from None
        except (OSError, SystemExit) as error:
            message = f"BLEU: the model of {tokenizer} cannot be downloaded ({first_line(error)})"
            raise UserError(message, "Try again, or choose another tokeniser.", ExitCode.UNAVAILABLE) from None
    if not lines_lack_spaces(references):
        return BLEU(force=True)
    unspaced = [character for line in references[:_LINES_LOOKED_AT] for character in line if is_unspaced(character)]
    chinese = sum(unicodedata.name(character).startswith("CJK") for character in unspaced)
    return BLEU(tokenize="zh" if chinese > _CHINESE_SHARE * len(unspaced) else "char", force=True)


def ter_metric(references: Sequence[str]) -> TER:
    """Return TER with sacreBLEU's defaults, and for references without spaces between words with its tokens for them.

    Such a token is a Chinese character or a sign of punctuation; what is between them (kana, Thai) stays one token.
    """
    spaceless = lines_lack_spaces(references)
    return TER(normalized=spaceless, asian_support=spaceless)


def as_outputs(references: Sequence[str]) -> tuple[list[str], int]:
    """Return the references with the characters that an output can have, and the number of lines changed.

    All training text is normalised, so no output has a soft hyphen or a direction mark, for example. A line that `normalise` changes in
    white space alone is kept.
    """
    lines = [kept if (kept := normalise(line)) != with_single_spaces(line) else line for line in references]
    return lines, sum(line != reference for line, reference in zip(lines, references, strict=True))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], deciding: Sequence[str] | None = None, tokenizer: str = "") -> float:
    """Return BLEU in percent, see `bleu_metric`; the references are normalised (`as_outputs`).

    `deciding` are the references that decide on the tokens, unless a tokeniser is named; None for `references`.
    """
    references, _ = as_outputs(references)
    metric = bleu_metric(references if deciding is None else as_outputs(deciding)[0], tokenizer)
    return float(metric.corpus_score(hypotheses, [references]).score)
