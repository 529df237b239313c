"""Translations: scores by sacreBLEU and by Moses' tokens, and shares of faulty outputs.

Hypotheses and references are detokenised text, one sentence per line, with one reference each.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF

from transformer_core.corpus.text import with_single_spaces
from transformer_core.errors import UserError
from transformer_core.evaluation.bleu import NORMALISED, as_outputs, bleu_metric, has_ter, references_lack_spaces, ter_metric
from transformer_core.evaluation.moses_bleu import PAPER_BLEU, PUBLISHED
from transformer_core.evaluation.scoring import Comparison, GroupScore, Score, Scores, Scoring, Share
from transformer_core.evaluation.significance import RESAMPLES, compare, interval
from transformer_core.tasks import TRANSLATION

OVER_LONG_RATIO, OVER_LONG_CHARACTERS = 2, 20
# Marks of tokenised text: full stops and commas after a space (also Chinese and Japanese), Moses' escapes and hyphens, subword marks.
# "?" and ":" after a space are no mark, since French has them.
_TOKENISED = re.compile(r" [.,\u3001\u3002\uff0c](?:\s|$)|&(?:apos|quot|amp|lt|gt|#\d+);|@@(?:\s|$)|@-@|▁")
# In forty detokenised files at most 0.9% of the lines have a mark; in five tokenised files at least 90% do.
TOKENISED_SHARE = 0.1


def _chrf_metric(references: Sequence[str]) -> CHRF:
    _ = references  # Characters need no tokeniser.
    return CHRF()


_TER = Score("ter", "TER", lower_is_better=True, optional=True)
# Each score's metric, which depends on the references.
_METRICS: dict[Score, Callable[[Sequence[str]], Metric]] = {
    Score(TRANSLATION.key, TRANSLATION.score): partial(bleu_metric, force=True),
    Score("chrf", "chrF2"): _chrf_metric,
    _TER: ter_metric,
}


def _metrics(deciding: Sequence[str], *texts: Sequence[str]) -> Iterator[tuple[Score, Metric]]:
    """Yield the scores and their metrics for these references, TER only if no line of the texts is too long for it (`has_ter`)."""
    for score, metric in _METRICS.items():
        if score is not _TER or has_ter(*texts):
            yield score, metric(deciding)


def _is_copied(source: str, hypothesis: str, reference: str) -> bool:
    """Return whether an output equals the source, ignoring case and white space, and the reference differs from it."""
    return _folded(hypothesis) == _folded(source) != _folded(reference)


def _is_empty(source: str, hypothesis: str, reference: str) -> bool:
    _ = reference
    return bool(source.strip()) and not hypothesis.strip()


def _is_over_long(source: str, hypothesis: str, reference: str) -> bool:
    """Return whether an output has more than twice as many characters as the reference, and more than 20 characters more."""
    _ = source
    length = len(reference.strip())
    return len(hypothesis.strip()) > max(OVER_LONG_RATIO * length, length + OVER_LONG_CHARACTERS)


# Each share's condition on a source, an output and a reference.
_SHARES: dict[Share, Callable[[str, str, str], bool]] = {
    Share("copied", "copied from the source"): _is_copied,
    Share("empty", "empty"): _is_empty,
    Share("over_long", "over-long"): _is_over_long,
}


class TranslationScoring(Scoring):
    """BLEU, chrF2, TER, and BLEU of Moses' tokens. References are scored as an output can have them (`as_outputs`)."""

    task = TRANSLATION
    scores = tuple(_METRICS)
    published = tuple(PUBLISHED)
    shares = tuple(_SHARES)
    of_sentences = "chrF2"
    outputs = "translations"
    purpose = "Translates **{source}** to **{target}**, one sentence a line."
    test = f"paired bootstrap, {RESAMPLES:,} resamples"

    def check_references(self, path: Path, references: Sequence[str], allow_tokenised: bool) -> Iterator[str]:
        """Yield warnings. Raises `UserError` (65): at least a tenth of the lines with text look tokenised.

        sacreBLEU would tokenise them again, and the score would not be comparable with other BLEU.
        """
        share, first = _tokenised_lines(references)
        if share >= TOKENISED_SHARE and not allow_tokenised:
            raise UserError(
                f"{path}:{first + 1}: looks tokenised ({share:.0%} of the lines do), but BLEU needs detokenised text",
                "Detokenise the corpus, or set evaluate.allow_tokenised: true.",
            )
        if share >= TOKENISED_SHARE:
            yield f"{path}: looks tokenised; compare these scores only with each other."
        _, changed = as_outputs(references)
        if changed:
            counted = f"{changed:,} of {len(references):,} lines"
            yield f"{path}: {counted} have characters that no translation has; they are normalised to be scored"

    def score_sets(
        self, sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], sources: Sequence[str], manifest: Mapping[str, Any]
    ) -> dict[str, Scores]:
        outputs, expected = sets["test"]
        # The references of test decide on the tokens of all sets, as in stage publish, so that one signature holds for all.
        deciding, _ = as_outputs(expected)
        found = {split: score(*of_set, manifest["target"], manifest.get("metrics", []), deciding) for split, of_set in sets.items()}
        return found | {"test": replace(found["test"], shares=output_shares(sources, outputs, deciding))}

    def sentence_scores(self, outputs: Sequence[str], references: Sequence[str]) -> list[float]:
        metric, (references, _) = CHRF(), as_outputs(references)
        return [metric.sentence_score(output, [reference]).score for output, reference in zip(outputs, references, strict=True)]

    def exactly_right(self, outputs: Sequence[str], references: Sequence[str]) -> list[bool]:
        """Compare words: a model never outputs two spaces, or the carriage return of a reference. chrF2 ignores white space."""
        references, _ = as_outputs(references)
        return [output.split() == reference.split() for output, reference in zip(outputs, references, strict=True)]

    def by_group(self, groups: Mapping[str, Sequence[int]], outputs: Sequence[str], references: Sequence[str]) -> list[GroupScore]:
        if len(outputs) != len(references):
            raise ValueError(f"{len(outputs)} hypotheses for {len(references)} references")
        references, _ = as_outputs(references)
        metric, scores = bleu_metric(references, force=True), []
        for label, indices in groups.items():
            some, expected = ([texts[index] for index in indices] for texts in (outputs, references))
            scores.append(GroupScore(label, len(indices), metric.corpus_score(some, [expected]).score))
        return scores

    def comparisons(self, baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> Iterator[Comparison]:
        texts, changed = as_outputs(references)
        for declared, metric in _metrics(references, baseline, candidate, references):
            found = compare(declared, metric, baseline, candidate, texts)
            yield replace(found, signature=f"{found.signature}{NORMALISED if changed else ''}")


SCORING = TranslationScoring()


def score(
    hypotheses: Sequence[str], references: Sequence[str], language: str, named: Sequence[str] = (), deciding: Sequence[str] | None = None
) -> Scores:
    """Return the scores of a set, their intervals, and BLEU of Moses' tokens.

    If `as_outputs` changes a reference, the signatures end with `NORMALISED`. Moses splits words at spaces, so the paper's BLEU is left out
    for text without them.

    Args:
        language: language of the sentences; used only by the BLEU of Moses' tokens.
        named: names of further scores, see `moses_bleu.PUBLISHED`.
        deciding: the references that decide on the tokens, for all sets of an evaluation alike; None for `references`.

    Raises:
        ValueError: the two differ in length (sacreBLEU would silently truncate the longer one) or are empty.
    """
    references, changed = as_outputs(references)
    deciding = references if deciding is None else deciding
    values: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for declared, metric in _metrics(deciding, hypotheses, references):
        values |= zip(declared.keys, interval(metric, hypotheses, references), strict=True)
        signatures[declared.key] = f"{metric.get_signature()}{NORMALISED if changed else ''}"
    wanted = {name.replace("-", "_") for name in named} | (set() if references_lack_spaces(deciding) else {PAPER_BLEU.key})
    for published, computed in PUBLISHED.items():
        if published.key in wanted:
            values[published.key], signatures[published.key] = computed(hypotheses, references, language)
    bleu = bleu_metric(deciding).corpus_score(hypotheses, [references])
    parts = {
        "brevity_penalty": bleu.bp,
        "length_ratio": bleu.ratio,
        "precisions": bleu.precisions,
        "hypothesis_tokens": bleu.sys_len,
        "reference_tokens": bleu.ref_len,
    }
    return Scores(len(hypotheses), values, signatures, parts=parts)


def output_shares(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the shares of copied, empty and over-long outputs, in percent of the sentences.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    triples = list(zip(sources, hypotheses, references, strict=True))
    if not triples:
        raise ValueError("no sentence")
    return {share.key: 100 * sum(counts(*triple) for triple in triples) / len(triples) for share, counts in _SHARES.items()}


def _tokenised_lines(lines: Sequence[str]) -> tuple[float, int]:
    """Return the share of lines with text that look tokenised, from 0 to 1, and the index of the first."""
    marked = [index for index, line in enumerate(lines) if _TOKENISED.search(line)]
    written = sum(1 for line in lines if line.strip())
    return (len(marked) / written, marked[0]) if marked else (0.0, 0)


def _folded(text: str) -> str:
    return with_single_spaces(text).casefold()
