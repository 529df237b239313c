"""Translation of token ids by CTranslate2: the same model, another search."""

import ctypes
from collections.abc import Iterator, Sequence
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

    Its beam search is not ours. A sentence is done when K hypotheses have ended, each among the K best of its position, even if a live one
    could still become the best; without penalty, the best of a position must have ended too. They are ranked by log P / |Y|^alpha, |Y|
    counting the end token. PAD, UNK and BOS are forbidden before the softmax, so log P is conditional on none of them.

    Attributes:
        translator: a ctranslate2.Translator.
        most_positions: most tokens on either side.
    """

    translator: Any
    subword: Subword
    most_positions: int

    @classmethod
    def load(cls, directory: Path, threads: int, precision: CTranslate2Precision = "float32") -> "CTranslate2Engine":
        """Read a model directory of ours; on a GPU if there is one.

        Args:
            threads: batches translated at once on a CPU, each by one thread, so that their number changes no bit.

        Raises:
            UserError: exit code 65 as `load_with_subword`; 78 where CTranslate2 is not installed, lacks cuBLAS or cannot hold the model.
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

    def translate_tokens(self, sources: Sequence[TokenIds], search: Search, batch_tokens: int) -> list[list[Hypothesis]]:
        """Return `search.beam` translations of each source, best first; an empty source has one, the empty one.

        Args:
            sources: token ids with an end token.
            search: its penalty is `power`, without coverage; a patience of None is one of 1 here.
            batch_tokens: most source tokens translated together.

        Raises:
            UserError: exit code 65; a source has more tokens than the model has positions.
        """
        lists = self.search(sources, search, batch_tokens)
        return [[Hypothesis.of(output, self.subword) for output in outputs] for outputs in lists]

    def search(self, sources: Sequence[TokenIds], search: Search, batch_tokens: int) -> list[list[Finished]]:
        """As `translate_tokens`, in token ids. An output that reached the greatest length before its end has no end token.

        A call of CTranslate2 has one greatest length, and a call for each length would be slow. So sources share that of the next power
        of two, and those with outputs as long as their own greatest length are searched again with it: the outputs depend on the source
        alone.
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
        """Yield the numbers of the sources in `greatest_lengths`, each with all outputs that have ended."""
        patience = search.patience or 1.0
        pieces = [self.subword.processor.id_to_piece(token) for token in range(self.subword.vocab_size)]
        ids = {piece: token for token, piece in enumerate(pieces)}
        running: list[tuple[int, Any]] = []
        # The longest first, so that the last to run are short; asynchronous, so that no thread is idle when a call has few sentences.
        for greatest in sorted(set(greatest_lengths.values()), reverse=True):
            numbers = [number for number, length in greatest_lengths.items() if length == greatest]
            outputs = self.translator.translate_batch(
                [[pieces[token] for token in sources[number][:-1]] for number in numbers],
                asynchronous=True,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                beam_size=search.beam,
                patience=patience,
                num_hypotheses=max(1, int(search.beam * patience + 0.5)),  # CTranslate2 waits for so many, and rounds like this.
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
    """Refuse a machine without cuBLAS: CTranslate2 loads it in its first product, and would fail there with a traceback."""
    try:
        ctypes.CDLL(_CUBLAS)
    except OSError:
        raise configuration_error(
            f"{_CUBLAS}: cannot be loaded, and CTranslate2 needs it on a GPU",
            "pip install nvidia-cublas-cu12 and put its folder into LD_LIBRARY_PATH, or set decode.engine: torch.",
        ) from None
