"""Translation of training text by a model, shard by shard. Finished shards are kept: a run that is stopped goes on with the next."""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transformer_core.corpus.sources.catalogue import Translated
from transformer_core.corpus.text import Pair, decode_line, write_lines
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Hypothesis, Translator
from transformer_core.errors import UserError
from transformer_core.files import sha256_of
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, read_config

# Part of a shard's name: a change in the search that changes translations needs a new one.
FORMAT = 1
LINES_PER_SHARD = 8_192
# A longer line is not translated: it is no sentence, and cleaning drops pairs with an empty side.
MOST_TOKENS = 512


@dataclass
class CorpusTranslator:
    """The translations of training text, in the order of the text.

    A shard's file is named by a hash of everything that its content depends on: text, model and settings. All devices translate the
    batches of a shard (`Translator.load`). The bytes depend neither on an interruption nor on the other shards.

    Attributes:
        shards: folder of the finished shards.
        direction: source and target language of the corpus that is made.
    """

    shards: Path
    direction: tuple[str, str]
    _used: set[Path] = field(default_factory=set)

    def __call__(self, wanted: Translated, directory: Path, pairs: Iterator[Pair[bytes]]) -> Iterator[Pair[bytes]]:
        """Yield pairs of a text and its translation.

        Args:
            wanted: settings of the source in the catalogue's entry.
            directory: the model directory.
            pairs: a text and its other side, to which `nearest` compares; at most a shard of them is in memory.

        Raises:
            UserError: exit code 65; the model is damaged or of other languages, or a text is not UTF-8.
        """
        self._check_languages(wanted, directory)
        settings = wanted.model_dump(include={"beam", "alpha", "pick", "precision"})
        model = [sha256_of(directory / name) for name in (WEIGHTS, CONFIG, SUBWORD)]
        key = json.dumps([FORMAT, MOST_TOKENS, settings, model], sort_keys=True)
        translator: Translator | None = None
        first = 1
        with tqdm(desc=f"translate {wanted.corpus}", unit=" lines", disable=None) as bar:
            while shard := list(islice(pairs, LINES_PER_SHARD)):
                path = self._path_of(key, shard, wanted.pick == "nearest")
                made = _kept(path)
                if made is None:
                    translator = translator or Translator.load(directory, precision=wanted.precision)
                    made = list(_translations(translator, wanted, shard, first, bar))
                    write_lines(path, [*made, _digest(made)])
                else:
                    bar.update(len(shard))
                first += len(shard)
                if bar.disable:
                    print(f"{wanted.corpus}: {first - 1:,} lines are translated", file=sys.stderr, flush=True)
                yield from (Pair(pair.source, text.encode()) for pair, text in zip(shard, made, strict=True))

    def remove_unused(self) -> None:
        """Remove the shards that this object has not read."""
        for path in set(self.shards.glob("*.txt")) - self._used:
            path.unlink()

    def _check_languages(self, wanted: Translated, directory: Path) -> None:
        config = read_config(directory / CONFIG)
        needed = self.direction if wanted.side == "target" else self.direction[::-1]
        if (config.source, config.target) != needed:
            fault = f"{directory / CONFIG}: translates {config.source} to {config.target}, and {' to '.join(needed)} is needed"
            raise UserError(fault, f"translated.side is {wanted.side}.")

    def _path_of(self, key: str, shard: list[Pair[bytes]], with_references: bool) -> Path:
        digest = hashlib.sha256(key.encode())
        for pair in shard:
            digest.update(b"%d %s\n" % (len(pair.source), pair.source))
            if with_references:
                digest.update(b"%d %s\n" % (len(pair.target), pair.target))
        self.shards.mkdir(parents=True, exist_ok=True)
        path = self.shards / f"{digest.hexdigest()}.txt"
        self._used.add(path)
        return path


def _kept(path: Path) -> list[str] | None:
    """Return the translations of a finished shard; None if there is no such file, or if its last line is not the sum of the others."""
    if not path.is_file():
        return None
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]
    return lines[:-1] if lines[-1:] == [_digest(lines[:-1])] else None


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _translations(translator: Translator, wanted: Translated, shard: list[Pair[bytes]], first: int, bar: "tqdm[Any]") -> Iterator[str]:
    """Yield the translations of a shard, whose first text is line `first` of the corpus."""
    where = Path(f"train of {wanted.corpus}")
    texts = [decode_line(pair.source, where, number) for number, pair in enumerate(shard, first)]
    sources = [translator.subword.encode(text) for text in texts]
    sources = [source if len(source) <= MOST_TOKENS else source[-1:] for source in sources]
    search = Search(wanted.beam, wanted.alpha, nbest=wanted.beam if wanted.pick == "nearest" else 1)
    for pair, hypotheses in zip(shard, translator.translate_tokens(sources, search, done=bar.update), strict=True):
        yield _nearest(hypotheses, pair.target.decode(errors="replace")) if wanted.pick == "nearest" else hypotheses[0].text


def _nearest(hypotheses: list[Hypothesis], reference: str) -> str:
    """Return the hypothesis with the highest chrF to the reference, the better one of equals."""
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF()
    return max((one.text for one in hypotheses), key=lambda text: chrf.sentence_score(text, [reference]).score)
