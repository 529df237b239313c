"""Scores of sentence pairs by two models, for cleaning: dual conditional cross-entropy (Junczys-Dowmunt 2018)."""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from transformer_core.corpus.text import Pair
from transformer_core.corpus.tokens.encoding import encoded
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.scoring import score_tokens
from transformer_core.decoding.shards import MOST_SENTENCE_TOKENS, Shards
from transformer_core.decoding.translator import BATCH_TOKENS, load_for_decoding
from transformer_core.files import sha256_of
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, check_languages
from transformer_core.models.translation import TranslationModel

FORWARD, BACKWARD = "forward", "backward"
FORMAT = 2  # Part of a shard's name, as in decoding/corpus.py.


def dual_scores(folder: Path, shards: Shards, direction: tuple[str, str], pairs: Iterator[Pair[str]]) -> Iterator[float]:
    """Yield the score of each pair by the models FOLDER/forward (source to target) and FOLDER/backward (target to source).

    With H the cross-entropy of a side given the other, in nats a token, a pair's score is |H_f - H_b| + (H_f + H_b) / 2: low where both
    models find it probable and equally so; infinity for a side of more than `MOST_SENTENCE_TOKENS`. `direction` is that of the corpus;
    shards keep the scores that are finished, and at most a shard of pairs is in memory.

    Raises `UserError` (65): a model is missing, damaged or of other languages.
    """
    directories = [folder / name for name in (FORWARD, BACKWARD)]
    for directory, languages in zip(directories, (direction, direction[::-1]), strict=True):
        check_languages(directory, languages, f"{FORWARD} translates the corpus's source, {BACKWARD} its target.")
    sums = [sha256_of(directory / name) for directory in directories for name in (WEIGHTS, CONFIG, SUBWORD)]
    loaded = cache(lambda: [load_for_decoding(directory) for directory in directories])

    def inputs(shard: list[Pair[str]]) -> bytes:
        return "\n".join([str(FORMAT), *sums, *(text for pair in shard for text in pair)]).encode()

    def scores(shard: list[Pair[str]], *_: object) -> list[str]:
        forward, backward = loaded()
        swapped = [Pair(pair.target, pair.source) for pair in shard]
        both = zip(_cross_entropies(*forward, shard), _cross_entropies(*backward, swapped), strict=True)
        return [repr(abs(left - right) + (left + right) / 2 if left + right < math.inf else math.inf) for left, right in both]

    yield from (float(score) for _, score in shards.lines(pairs, inputs, scores, "score"))


def _cross_entropies(model: TranslationModel, subword: Subword, pairs: list[Pair[str]]) -> list[float]:
    """Return the cross-entropy of each target given its source, in nats a token, end token included; infinity if a side is too long."""
    tokens = [encoded(pair, subword) for pair in pairs]
    most = min(MOST_SENTENCE_TOKENS, model.most_positions or MOST_SENTENCE_TOKENS)
    short = [number for number, sides in enumerate(tokens) if max(map(len, sides)) <= most]
    found = score_tokens(model, [tokens[number][0] for number in short], [tokens[number][1] for number in short], BATCH_TOKENS)
    results = [math.inf] * len(pairs)
    for number, logs in zip(short, found, strict=True):
        results[number] = -math.fsum(logs) / len(logs)
    return results
