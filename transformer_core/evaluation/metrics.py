"""Scores of translations by sacreBLEU, shares of faulty outputs, and the choice of examples.

Hypotheses and references are detokenised text, one sentence per line, with one reference each.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF

from transformer_core.corpus.text import length_in_words, read_lines, unequal_sides, with_single_spaces
from transformer_core.errors import UserError
from transformer_core.evaluation.bleu import NORMALISED, as_outputs, bleu_metric, has_ter, references_lack_spaces, ter_metric
from transformer_core.evaluation.moses_bleu import CORPUS_COUNTS, MosesBleu, paper_bleu
from transformer_core.evaluation.significance import intervals

# Ranks of examples, from high scores to low ones, and the order in which they get a sentence where there are fewer than five to choose.
QUANTILES = ("best", "upper quartile", "median", "lower quartile", "worst")
_FIRST_CHOSEN = ("best", "worst", "median", "upper quartile", "lower quartile")
# The ranks of examples that all have the same score, and of those with the full one.
ALIKE, EXACT = "alike", "exact"
BUCKET_WORDS = 10
LAST_BUCKET = 51
OVER_LONG_RATIO, OVER_LONG_CHARACTERS = 2, 20
# Marks of tokenised text: full stops and commas after a space (also Chinese and Japanese), Moses' escapes and hyphens, subword marks.
# "?" and ":" after a space are no mark, since French has them.
_TOKENISED = re.compile(r" [.,\u3001\u3002\uff0c](?:\s|$)|&(?:apos|quot|amp|lt|gt|#\d+);|@@(?:\s|$)|@-@|▁")
# In forty detokenised files at most 0.9% of the lines have a mark; in five tokenised files at least 90% do.
TOKENISED_SHARE = 0.1


@dataclass(frozen=True)
class Scores:
    """Scores of one set of translations; BLEU, chrF2 and TER in percent (TER counts edits, so lower is better).

    A signature records how a score was computed: two scores are comparable only if their signatures are equal.

    Attributes:
        bleu_low: lower end of BLEU's 95% bootstrap interval; `bleu_high` is the upper end. chrF2 and TER have theirs.
        precisions: precisions of sequences of one to four of BLEU's tokens, in percent.
        hypothesis_tokens: number of BLEU's tokens of all hypotheses; `reference_tokens` that of the references.
        brevity_penalty: factor of BLEU; 1.0 is none.
        length_ratio: ratio of the tokens of the hypotheses to those of the references.
        ter: None if a line is too long for it (`has_ter`), as are its interval and signature.
        moses_bleu: BLEU of Moses' tokens by the count's name: `paper_bleu`, and those that the corpus asks for.
    """

    bleu: float
    bleu_low: float
    bleu_high: float
    chrf: float
    chrf_low: float
    chrf_high: float
    ter: float | None
    ter_low: float | None
    ter_high: float | None
    precisions: tuple[float, ...]
    hypothesis_tokens: int
    reference_tokens: int
    brevity_penalty: float
    length_ratio: float
    lines: int
    bleu_signature: str
    chrf_signature: str
    ter_signature: str | None
    moses_bleu: Mapping[str, MosesBleu]


@dataclass(frozen=True)
class OutputShares:
    """Shares of outputs, in percent, that are wrong whatever the wording of the reference.

    Attributes:
        copied: share of outputs equal to the source, ignoring case and white space, whose reference differs from it.
        empty: share of empty outputs for a source that is not empty.
        over_long: share of outputs with more than twice as many characters as the reference, and more than 20 characters more.
    """

    copied: float
    empty: float
    over_long: float


@dataclass(frozen=True)
class GroupScore:
    """Score in percent, BLEU or F1, over the sentences or words of a test set that share a label, and their number."""

    label: str
    size: int
    score: float


@dataclass(frozen=True)
class Example:
    """A sentence chosen as an example: its rank (in `QUANTILES`, `ALIKE` or `EXACT`), index in the test set, and own score in percent."""

    rank: str
    index: int
    score: float


def read_aligned(*paths: Path) -> list[list[str]]:
    """Read files that correspond line by line; nothing is stripped, and lines end only at "\\n".

    Raises `UserError`: a file cannot be read, is empty, or has another number of lines than the first.
    """
    files = [list(read_lines(path)) for path in paths]
    for path, lines in zip(paths, files, strict=True):
        if len(lines) != len(files[0]):
            raise unequal_sides(path, paths[0], len(lines), len(files[0]))
        if not lines:
            raise UserError(f"{path}: holds no line, so there is nothing to score")
    return files


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Return whether at least a tenth of the lines with text have marks of a tokeniser or of a segmentation into subwords."""
    return _tokenised_lines(lines)[0] >= TOKENISED_SHARE


def refuse_tokenised(path: Path, references: Sequence[str]) -> None:
    """Refuse tokenised references: sacreBLEU would tokenise them again, and the score would not be comparable with other BLEU.

    Raises `UserError` (65): at least a tenth of the lines with text look tokenised.
    """
    share, first = _tokenised_lines(references)
    if share >= TOKENISED_SHARE:
        raise UserError(
            f"{path}:{first + 1}: looks tokenised ({share:.0%} of the lines do), but BLEU needs detokenised text",
            "Detokenise the corpus, or set evaluate.allow_tokenised: true.",
        )


def unlike_outputs(path: Path, references: Sequence[str]) -> str | None:
    """Return a note on the references that are normalised to be scored (`as_outputs`); None if there are none."""
    _, count = as_outputs(references)
    if not count:
        return None
    return f"{path}: {count:,} of {len(references):,} lines have characters that no translation has; they are normalised to be scored"


def score(
    hypotheses: Sequence[str], references: Sequence[str], language: str, named: Sequence[str] = (), deciding: Sequence[str] | None = None
) -> Scores:
    """Return corpus BLEU (`bleu_metric`), chrF2 with sacreBLEU's defaults, TER (`ter_metric`), their intervals, and BLEU of Moses' tokens.

    References are normalised (`as_outputs`); if that changes one, the signatures end with `NORMALISED`. Moses splits words at spaces, so
    the paper's BLEU is left out for text without them.

    Args:
        language: language of the sentences; used only by the BLEU of Moses' tokens.
        named: names of further counts, see `moses_bleu.CORPUS_COUNTS`.
        deciding: the references that decide on the tokens, for all sets of an evaluation alike; None for `references`.

    Raises:
        ValueError: the two differ in length (sacreBLEU would silently truncate the longer one) or are empty.
    """
    references, changed = as_outputs(references)
    deciding, mark = references if deciding is None else deciding, NORMALISED if changed else ""
    metric, chrf_metric, edits_metric = bleu_metric(deciding), CHRF(), ter_metric(deciding)
    scored: dict[str, Metric] = {"bleu": bleu_metric(deciding, force=True), "chrf": chrf_metric}
    if has_ter(hypotheses, references):
        scored["ter"] = edits_metric
    found = intervals(scored, hypotheses, references)
    ter = found.get("ter")
    bleu = metric.corpus_score(hypotheses, [references])
    return Scores(
        bleu=bleu.score,
        bleu_low=found["bleu"].low,
        bleu_high=found["bleu"].high,
        chrf=found["chrf"].score,
        chrf_low=found["chrf"].low,
        chrf_high=found["chrf"].high,
        ter=ter.score if ter else None,
        ter_low=ter.low if ter else None,
        ter_high=ter.high if ter else None,
        precisions=tuple(bleu.precisions),
        hypothesis_tokens=bleu.sys_len,
        reference_tokens=bleu.ref_len,
        brevity_penalty=bleu.bp,
        length_ratio=bleu.ratio,
        lines=len(hypotheses),
        bleu_signature=f"{metric.get_signature()}{mark}",
        chrf_signature=f"{chrf_metric.get_signature()}{mark}",
        ter_signature=f"{edits_metric.get_signature()}{mark}" if ter else None,
        moses_bleu={
            **({} if references_lack_spaces(deciding) else {"paper_bleu": paper_bleu(hypotheses, references, language)}),
            **{name.replace("-", "_"): CORPUS_COUNTS[name](hypotheses, references, language) for name in named},
        },
    )


def output_shares(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> OutputShares:
    """Return the shares of copied, empty and over-long outputs, in percent of the sentences.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    triples = list(zip(sources, hypotheses, references, strict=True))
    if not triples:
        raise ValueError("no sentence")
    copied = sum(1 for source, hypothesis, reference in triples if _folded(hypothesis) == _folded(source) != _folded(reference))
    empty = sum(1 for source, hypothesis, _ in triples if source.strip() and not hypothesis.strip())
    over_long = sum(1 for _, hypothesis, reference in triples if _is_over_long(hypothesis.strip(), reference.strip()))
    return OutputShares(*(100 * count / len(triples) for count in (copied, empty, over_long)))


def bleu_by_group(groups: Mapping[str, Sequence[int]], hypotheses: Sequence[str], references: Sequence[str]) -> list[GroupScore]:
    """Return BLEU over groups of sentences; `groups` has the indices of sentences by label (`length_labels`).

    Raises:
        ValueError: hypotheses and references differ in length.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    metric = bleu_metric(references, force=True)
    scores = []
    for label, indices in groups.items():
        outputs, expected = ([texts[index] for index in indices] for texts in (hypotheses, references))
        scores.append(GroupScore(label, len(indices), metric.corpus_score(outputs, [expected]).score))
    return scores


def length_labels(sources: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of sentences by the length of the source, see `length_in_words`.

    The groups are 0, 1-10, 11-20, ... 51+, in this order; empty groups are left out.
    """
    import pandas as pd

    lengths = pd.Series([length_in_words(source) for source in sources], dtype=int)
    ends = range(0, LAST_BUCKET, BUCKET_WORDS)
    labels = ["0", *(f"{end + 1}-{end + BUCKET_WORDS}" for end in ends[:-1]), f"{LAST_BUCKET}+"]
    buckets = pd.cut(lengths, [-1, *ends, np.inf], labels=labels)
    return {str(label): places.tolist() for label, places in lengths.groupby(buckets, observed=True).groups.items()}


def choose_examples(scores: Sequence[float], right: Sequence[bool], count: int) -> list[Example]:
    """Choose `count` sentences by their scores: a fifth each of the best, at the quartiles and of the worst (`QUANTILES`).

    Sentences that are exactly right show nothing: they are left out of the quantiles, and are chosen, as `EXACT`, only if there are
    fewer than `count` others. No sentence is chosen twice. If there are at most `count` sentences, all are chosen. Each rank is in
    descending order of the score, the worst in ascending order. If all others have the same score, their rank is `ALIKE`.
    """
    exact = [index for index, is_right in enumerate(right) if is_right]
    ranking = sorted((index for index, is_right in enumerate(right) if not is_right), key=lambda index: -scores[index])
    shown = min(count, len(ranking))
    chosen: dict[str, list[int]] = {}
    if len(ranking) > 1 and scores[ranking[0]] == scores[ranking[-1]]:
        chosen[ALIKE] = ranking[:shown]
    else:
        chosen |= _at_quantiles(ranking, shown)
    chosen[EXACT] = exact[: count - shown]
    return [Example(rank, index, scores[index]) for rank, indices in chosen.items() for index in indices]


def _at_quantiles(ranking: Sequence[int], shown: int) -> dict[str, list[int]]:
    """Return `shown` of the ranked indices, by rank."""
    sizes = {rank: shown // len(QUANTILES) + (place < shown % len(QUANTILES)) for place, rank in enumerate(_FIRST_CHOSEN)}
    chosen, before = {}, 0
    for place, rank in enumerate(QUANTILES):
        start = before + (len(ranking) - shown) * place // (len(QUANTILES) - 1)
        chosen[rank] = list(ranking[start : start + sizes[rank]])
        before += sizes[rank]
    chosen["worst"].reverse()
    return chosen


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return chrF2 of each sentence, in percent."""
    metric = CHRF()
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in zip(hypotheses, references, strict=True)]


def _tokenised_lines(lines: Sequence[str]) -> tuple[float, int]:
    """Return the share of lines with text that look tokenised, from 0 to 1, and the index of the first."""
    marked = [index for index, line in enumerate(lines) if _TOKENISED.search(line)]
    written = sum(1 for line in lines if line.strip())
    return (len(marked) / written, marked[0]) if marked else (0.0, 0)


def _folded(text: str) -> str:
    return with_single_spaces(text).casefold()


def _is_over_long(hypothesis: str, reference: str) -> bool:
    return len(hypothesis) > max(OVER_LONG_RATIO * len(reference), len(reference) + OVER_LONG_CHARACTERS)
