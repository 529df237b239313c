"""Translations: scores by sacreBLEU and by Moses' tokens, and shares of faulty outputs.

Hypotheses and references are detokenised text, one sentence per line, with one reference each.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF

from transformer_core import config
from transformer_core.corpus.sources.manifest import SYMBOL_ERRORS
from transformer_core.corpus.text import length_in_words, lines_lack_spaces, normalise, with_single_spaces
from transformer_core.errors import UserError
from transformer_core.evaluation.bleu import MOST_TER_WORDS, NORMALISED, as_outputs, bleu_metric, corpus_bleu, ter_metric, tokenizer_of
from transformer_core.evaluation.error_rates import ERROR_RATES
from transformer_core.evaluation.moses_bleu import PAPER_BLEU, PUBLISHED
from transformer_core.evaluation.scoring import Comparison, Score, Scores, Scoring, untagged
from transformer_core.evaluation.significance import SEED, TRIALS, compared, interval, scores_of, statistics_of
from transformer_core.evaluation.variety import variety
from transformer_core.tasks import TARGETS, TRANSLATION, without_region

# Marks of tokenised text: full stops and commas after a space (also Chinese and Japanese), Moses' escapes and hyphens, subword marks.
# "?" and ":" after a space are no mark, since French has them.
_TOKENISED = re.compile(r" [.,\u3001\u3002\uff0c](?:\s|$)|&(?:apos|quot|amp|lt|gt|#\d+);|@@(?:\s|$)|@-@|▁")
# In forty detokenised files at most 0.9% of the lines have a mark; in five tokenised files at least 90% do.
TOKENISED_SHARE = 0.1


# By a command (neural.py), where one is set.
COMET = Score(config.COMET, "COMET", has_interval=True, sentence="COMET, by the command in its signature,")
_PUBLISHED = PUBLISHED | ERROR_RATES
_TER = Score("ter", "TER", has_interval=True, lower_is_better=True, optional=True)
# Each score's metric, given the references and the tokeniser of BLEU.
_METRICS: dict[Score, Callable[[Sequence[str], str], Metric]] = {
    Score(TRANSLATION.key, TRANSLATION.score, has_interval=True): bleu_metric,
    Score("chrf", "chrF2", has_interval=True): lambda _references, _tokenizer: CHRF(),
    _TER: lambda references, _tokenizer: ter_metric(references),
}


def _metrics(deciding: Sequence[str], tokenizer: str, *texts: Sequence[str]) -> Iterator[tuple[Score, Metric]]:
    """Yield the scores and their metrics for these references, TER only if no line of the texts is longer than `MOST_TER_WORDS`."""
    has_ter = all(length_in_words(line) <= MOST_TER_WORDS for lines in texts for line in lines)
    for score, metric in _METRICS.items():
        if score is not _TER or has_ter:
            yield score, metric(deciding, tokenizer)


def _folded(text: str) -> str:
    return with_single_spaces(text).casefold()


# Each share's condition on a source, an output and a reference. Over-long is more than twice as long, and by more than 20 characters.
_SHARES: dict[Score, Callable[[str, str, str], bool]] = {
    Score("copied", "copied from the source"): lambda source, output, reference: _folded(output) == _folded(source) != _folded(reference),
    Score("empty", "empty"): lambda source, output, _reference: bool(source.strip()) and not output.strip(),
    Score("over_long", "over-long"): lambda _, output, reference: len(output.strip()) > (n := len(reference.strip())) + max(n, 20),
}


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    named: Sequence[str] = (),
    deciding: Sequence[str] | None = None,
    tokenizer: str = "",
) -> Scores:
    """Return the scores of a set, their intervals, and BLEU of Moses' tokens.

    If `as_outputs` changes a reference, the signatures end with `NORMALISED`. The paper's BLEU is of words: it is left out for symbols, and
    for text without spaces, where Moses splits words.

    Args:
        language: language of the sentences; used only by the BLEU of Moses' tokens.
        named: names of further scores (`FurtherScore`).
        deciding: the references that decide on the tokens, for all sets of an evaluation alike; None for `references`.
        tokenizer: the tokeniser of BLEU; empty: the references decide.

    Raises `ValueError`: the two differ in length (sacreBLEU would silently truncate the longer one) or are empty.
    """
    references, changed = as_outputs(references)
    deciding = references if deciding is None else deciding
    values: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for declared, metric in _metrics(deciding, tokenizer, hypotheses, references):
        values |= zip(declared.keys, interval(metric, hypotheses, references), strict=True)
        signatures[declared.key] = f"{metric.get_signature()}{NORMALISED if changed else ''}"
    of_words = SYMBOL_ERRORS not in named and not lines_lack_spaces(deciding)
    wanted = {name.replace("-", "_") for name in named} | ({PAPER_BLEU.key} if of_words else set())
    for published, computed in _PUBLISHED.items():
        if published.key in wanted and language != TARGETS:  # Moses' tokens are those of a language.
            values[published.key], signatures[published.key] = computed(hypotheses, references, without_region(language))
    bleu = bleu_metric(deciding, tokenizer).corpus_score(hypotheses, [references])
    parts = {
        "brevity_penalty": bleu.bp,
        "length_ratio": bleu.ratio,
        "precisions": bleu.precisions,
        "hypothesis_tokens": bleu.sys_len,
        "reference_tokens": bleu.ref_len,
        **variety(hypotheses, references),
    }
    return Scores(len(hypotheses), values, signatures, parts=parts)


def output_shares(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the percentages of copied, empty and over-long outputs. Raises `ValueError`: the three differ in length or are empty."""
    triples = list(zip(sources, hypotheses, references, strict=True))
    if not triples:
        raise ValueError("no sentence")
    return {share.key: 100 * sum(counts(*triple) for triple in triples) / len(triples) for share, counts in _SHARES.items()}


def score_sets(
    sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], sources: Sequence[str], manifest: Mapping[str, Any], tokenizer: str = ""
) -> dict[str, Scores]:
    """Return the scores of all sets. The references of test decide on the tokens of all, as in stage publish: one signature for all.

    But in a corpus of several directions the language of a test set of one decides. The score of test is that of all sentences together.
    """
    outputs, expected = sets["test"]
    deciding, _ = as_outputs(expected)
    named = manifest.get("metrics", [])
    found = {}
    for split, of_set in sets.items():
        targets = {target for _, target, _ in manifest["splits"][split].get("directions", [])}
        language = targets.pop() if len(targets) == 1 else str(manifest["target"])
        tokens = (deciding, tokenizer) if language == manifest["target"] else (None, tokenizer_of(language, tokenizer))
        found[split] = score(*of_set, language, named, *tokens)
    return found | {"test": replace(found["test"], shares=output_shares(untagged(sources), outputs, deciding))}


def sentence_chrf(outputs: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return chrF2 of each sentence, in percent."""
    metric, (references, _) = CHRF(), as_outputs(references)
    return [metric.sentence_score(output, [reference]).score for output, reference in zip(outputs, references, strict=True)]


def comparisons(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str], tokenizer: str = "") -> Iterator[Comparison]:
    """Yield the comparison by BLEU, chrF2 and, unless a line is too long for it, TER."""
    texts, changed = as_outputs(references)
    for declared, metric in _metrics(references, tokenizer, baseline, candidate, references):
        first, second = (statistics_of(metric, outputs, texts) for outputs in (baseline, candidate))
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("ar", TRIALS)
        yield compared(declared, first, second, scores_of(metric), f"{signature}{NORMALISED if changed else ''}")


def check_references(path: Path, references: Sequence[str], allow_tokenised: bool) -> Iterator[str]:
    """Yield warnings. Raises `UserError` (65): at least a tenth of the lines with text look tokenised.

    sacreBLEU would tokenise them again, and the score would not be comparable with other BLEU.
    """
    marked = [number for number, line in enumerate(references, start=1) if _TOKENISED.search(line)]
    share = len(marked) / max(sum(bool(line.strip()) for line in references), 1)
    if share >= TOKENISED_SHARE and not allow_tokenised:
        fault = f"{path}:{marked[0]}: looks tokenised ({share:.0%} of the lines do), but BLEU needs detokenised text"
        raise UserError(fault, "Detokenise the corpus, or set evaluate.allow_tokenised: true.")
    if share >= TOKENISED_SHARE:
        yield f"{path}: looks tokenised; compare these scores only with each other."
    if changed := as_outputs(references)[1]:
        counted = f"{changed:,} of {len(references):,} lines"
        yield f"{path}: {counted} have characters that no translation has; they are normalised to be scored"


SCORING = Scoring(
    task=TRANSLATION,
    scores=tuple(_METRICS),
    published=(*_PUBLISHED, COMET),
    shares=tuple(_SHARES),
    score_sets=score_sets,
    main_score=corpus_bleu,
    has_tokens=True,
    sentence_scores=sentence_chrf,
    of_sentences="chrF2",
    # Words: a model never outputs two spaces, or the carriage return of a reference. chrF2 ignores white space.
    is_right=lambda output, reference, _score: output.split() == normalise(reference).split(),
    comparisons=comparisons,
    check_references=check_references,
    outputs="translations",
    purpose="Translates **{source}** to **{target}**, one sentence a line.",
)
