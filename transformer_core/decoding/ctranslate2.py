"""Translation of token ids by CTranslate2: the same model, but CTranslate2's beam search."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformer_core.config import CTranslate2Precision
from transformer_core.corpus.tokens.subword import BOS, PAD, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.translator import Hypothesis, TokenIds, check_length, load_with_subword
from transformer_core.errors import configuration_error
from transformer_core.export.ctranslate2 import TABLE_POSITIONS, export_model, library

_CUBLAS = "libcublas.so.12"


@dataclass(frozen=True)
class CTranslate2Engine:
    """A model in CTranslate2 with its vocabulary.

    Its beam search differs from decoding/beam.py. A sentence is done when K hypotheses have ended, each among the K best of its position,
    even if a live hypothesis could still become the best; without penalty, the best of a position must have ended too. Hypotheses are
    ranked by log P / |Y|^alpha, where |Y| counts the end token. PAD, UNK and BOS are forbidden before the softmax, so log P is the
    probability given that none of them occurs.

    Attributes:
        translator: a ctranslate2.Translator.
        subword: the model's vocabulary.
        most_positions: largest number of tokens on either side.
    """

    translator: Any
    subword: Subword
    most_positions: int

    @classmethod
    def load(cls, directory: Path, threads: int, precision: CTranslate2Precision = "float32") -> "CTranslate2Engine":
        """Load a model directory, on a GPU if there is one.

        Args:
            directory: model directory with weights, config.json and spm.model.
            threads: number of batches translated in parallel on a CPU, with one thread each, so results do not depend on this number.
            precision: number type of weights and matrix products.

        Raises:
            UserError: see `load_with_subword`; exit code 78 if CTranslate2 is not installed, lacks cuBLAS or does not support the model.
        """
        package = library()
        on_gpu = package.get_cuda_device_count() > 0
        if on_gpu:
            _check_cublas()
        model, subword = load_with_subword(directory)
        with TemporaryDirectory() as folder:
            exported = Path(folder) / "model"
            export_model(model, directory, exported)
            translator = package.Translator(
                str(exported),
                device="cuda" if on_gpu else "cpu",
                compute_type=precision,
                inter_threads=1 if on_gpu else threads,
                intra_threads=1,
            )
        return cls(translator, subword, model.most_positions or TABLE_POSITIONS)

    def translate_tokens(
        self, sources: Sequence[TokenIds], search: Search, batch_tokens: int, done: Callable[[int], object] = int
    ) -> list[list[Hypothesis]]:
        """Return at most `search.beam` translations of each source, best first; an empty source has a single, empty translation.

        Args:
            sources: token ids with an end token.
            search: settings; the penalty must be `power`, coverage is not supported, and a patience of None means 1.
            batch_tokens: largest number of source tokens in a batch.
            done: called once, with the number of sources: CTranslate2 tells nothing before the end.

        Raises:
            UserError: exit code 65; a source has more tokens than the model has positions.
        """
        lists = self.search(sources, search, batch_tokens)
        done(len(sources))
        return [[Hypothesis.of(output, self.subword) for output in outputs] for outputs in lists]

    def search(self, sources: Sequence[TokenIds], search: Search, batch_tokens: int) -> list[list[Finished]]:
        """Translate as `translate_tokens`, but return token ids. An output that is cut off at the greatest length has no end token.

        A call of CTranslate2 has a single greatest length, and a call per length would be slow. So the greatest length is first computed
        from the source length rounded up to a power of two. Sources with outputs as long as their own greatest length are searched again
        with it. Therefore outputs do not depend on the other sources.
        """
        for number, source in enumerate(sources, 1):
            check_length(source, self.most_positions, f"sentence {number}", "CTranslate2")
        results = [[Finished([], 0.0, 0.0)] for _ in sources]
        own = {number: self._greatest_length(len(source), search) for number, source in enumerate(sources) if len(source) > 1}
        shared = {number: self._greatest_length(1 << (len(sources[number]) - 1).bit_length(), search) for number in own}
        for number, outputs in self._searched(sources, shared, search, batch_tokens):
            results[number] = outputs
        too_far = {
            number: greatest
            for number, greatest in own.items()
            if greatest < shared[number] and any(len(output.tokens) >= greatest for output in results[number])
        }
        for number, outputs in self._searched(sources, too_far, search, batch_tokens):
            results[number] = outputs
        return [outputs[: search.beam] for outputs in results]

    def _searched(
        self, sources: Sequence[TokenIds], greatest_lengths: dict[int, int], search: Search, batch_tokens: int
    ) -> Iterator[tuple[int, list[Finished]]]:
        """Yield the index of each source in `greatest_lengths` with all its outputs, which can be more than `search.beam`."""
        patience = search.patience or 1.0
        pieces = [self.subword.processor.id_to_piece(token) for token in range(self.subword.vocab_size)]
        ids = {piece: token for token, piece in enumerate(pieces)}
        running: list[tuple[int, Any]] = []
        # The longest first, so that the last batches are short; asynchronous, so that no thread is idle when a call has few sentences.
        for greatest in sorted(set(greatest_lengths.values()), reverse=True):
            numbers = [number for number, length in greatest_lengths.items() if length == greatest]
            outputs = self.translator.translate_batch(
                [[pieces[token] for token in sources[number][:-1]] for number in numbers],
                asynchronous=True,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                beam_size=search.beam,
                patience=patience,
                num_hypotheses=max(1, int(search.beam * patience + 0.5)),  # CTranslate2 waits for this number, rounded this way.
                length_penalty=search.alpha,
                max_input_length=0,
                max_decoding_length=greatest,
                min_decoding_length=0,
                disable_unk=True,
                suppress_sequences=[[pieces[PAD]], [pieces[BOS]]],
                return_scores=True,
                return_end_token=True,
            )
            running += zip(numbers, outputs, strict=True)
        for number, output in running:
            found = output.result()
            ranked = zip(found.hypotheses, found.scores, strict=True)
            yield number, [_finished([ids[piece] for piece in hypothesis], score, search.alpha) for hypothesis, score in ranked]

    def _greatest_length(self, source_length: int, search: Search) -> int:
        return min(source_length - 1 + search.max_extra, self.most_positions)


def _finished(tokens: list[int], score: float, alpha: float) -> Finished:
    return Finished(tokens, score * len(tokens) ** alpha, score)


def _check_cublas() -> None:
    """Raise `UserError` (78) if cuBLAS is missing: CTranslate2 loads it in its first product and would fail with a traceback."""
    try:
        ctypes.CDLL(_CUBLAS)
    except OSError:
        raise configuration_error(
            f"{_CUBLAS}: cannot be loaded, and CTranslate2 needs it on a GPU",
            "pip install nvidia-cublas-cu12 and put its folder into LD_LIBRARY_PATH, or set decode.engine: torch.",
        ) from None
