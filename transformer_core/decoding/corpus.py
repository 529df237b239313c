"""Translation of training text by a model, for the sources `translated` of a corpus."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transformer_core.corpus.sources.catalogue import Translated
from transformer_core.corpus.text import Pair, decode_line
from transformer_core.corpus.tokens.encoding import encoded_source
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import DecodingRequest, SourceChunk, choose_engine, load_engine, translated
from transformer_core.decoding.lines import with_strings
from transformer_core.decoding.shards import MOST_SENTENCE_TOKENS, Shards
from transformer_core.decoding.translator import BATCH_TOKENS
from transformer_core.files import sha256_of
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, check_languages

FORMAT = 3  # Part of a shard's name: a change in the search that changes translations needs a new one.


def translated_text(
    shards: Shards, direction: tuple[str, str], wanted: Translated, directory: Path, pairs: Iterator[Pair[bytes]]
) -> Iterator[Pair[bytes]]:
    """Yield pairs of a training text and its translation, which is empty for an empty text and for more than `MOST_SENTENCE_TOKENS` tokens.

    They are for a corpus of this direction, in the order of the text; shards keep those that are finished. All devices translate the
    batches of a shard, with the faster engine. `pairs` are a text and its other side, to which `nearest` compares; at most a shard of them
    is in memory. Raises `UserError` (65): the model is damaged or of other languages, or a text is not UTF-8.
    """
    needed = direction if wanted.side == "target" else direction[::-1]
    check_languages(directory, needed, f"translated.side is {wanted.side}.")
    settings = wanted.model_dump(include={"beam", "alpha", "pick", "precision"})
    search = Search(wanted.beam, wanted.alpha, nbest=wanted.beam if wanted.pick == "nearest" else 1)
    asked = DecodingRequest([directory], search, wanted.precision, longest=MOST_SENTENCE_TOKENS + search.max_extra)
    name = choose_engine("auto", asked).engine
    model = [sha256_of(directory / name) for name in (WEIGHTS, CONFIG, SUBWORD)]
    key = json.dumps([FORMAT, MOST_SENTENCE_TOKENS, settings, name, model], sort_keys=True).encode()
    loaded = cache(lambda: load_engine(name, asked))

    def make(shard: list[Pair[bytes]], first: int, bar: "tqdm[Any]") -> list[str]:
        """Return the translations of a shard, whose first text is line `first` of the corpus."""
        engine = loaded()
        texts = [decode_line(pair.source, Path(f"train of {wanted.corpus}"), number) for number, pair in enumerate(shard, first)]
        read = [encoded_source(text, engine.subword) for text in texts]
        most = min(MOST_SENTENCE_TOKENS, engine.most_positions or MOST_SENTENCE_TOKENS)
        sources = [source if len(source) <= most else source[-1:] for source, _ in read]
        request = replace(asked, scored=wanted.pick == "nearest")
        (found,) = translated(engine, [SourceChunk(sources)], request, BATCH_TOKENS, ahead=0, done=bar.update)
        found = [with_strings(ranked, strings) for ranked, (_, strings) in zip(found, read, strict=True)]
        if not request.scored:
            return [hypotheses[0].text for hypotheses in found]
        from sacrebleu.metrics.chrf import CHRF

        chrf, nearest = CHRF(), []
        for pair, hypotheses in zip(shard, found, strict=True):
            references = [pair.target.decode(errors="replace")]
            scores = [chrf.sentence_score(hypothesis.text, references).score for hypothesis in hypotheses]
            nearest.append(hypotheses[scores.index(max(scores))].text)  # The better one of equals.
        return nearest

    def inputs(shard: list[Pair[bytes]]) -> bytes:
        return key + b"".join(b"\n" + text for pair in shard for text in (pair if wanted.pick == "nearest" else pair[:1]))

    made = shards.lines(pairs, inputs, make, f"translate {wanted.corpus}")
    yield from (Pair(pair.source, text.encode()) for pair, text in made)
