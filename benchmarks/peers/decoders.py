"""The contenders of benchmarks/decoding.py: engines with one model each, every one in a process of its own that waits for work."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from transformer_core.corpus.subword import EOS, PAD, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.models.precision import DecodingPrecision
from transformer_core.models.transformer import Transformer

SEARCH = Search(beam=4, alpha=0.6, penalty="power", max_extra=50)


@dataclass(frozen=True)
class Choice:
    """What an engine may choose: the most source tokens of a batch, how many batches are translated at once, and threads of each."""

    batch_tokens: int
    at_once: int
    threads: int


@dataclass(frozen=True)
class Work:
    """Sentences to translate, token ids with end tokens; all at hand, or one after the other as they would come from a person."""

    sources: list[list[int]]
    choice: Choice
    one_by_one: bool


class Engine(Protocol):
    """Translates with one model."""

    def translate(self, sources: Sequence[list[int]], choice: Choice) -> list[tuple[str, int]]:
        """Text and tokens, end token included, of the best translation of each source, in their order."""


def serve(engine: str, directory: Path, exported: Path, connection: Connection) -> None:
    """The life of a contender's process: for each work that comes, answer with the seconds it took and the outputs.

    Args:
        engine: a key of ENGINES.
        directory: the model directory.
        exported: the same for CTranslate2.
        connection: gives a `Work`, or None at the end.
    """
    loaded: Engine = ENGINES[engine](exported if engine.startswith("CTranslate2") else directory)
    while (work := connection.recv()) is not None:
        parts = [[source] for source in work.sources] if work.one_by_one else [work.sources]
        began = time.perf_counter()
        outputs = [output for part in parts for output in loaded.translate(part, work.choice)]
        connection.send((time.perf_counter() - began, outputs))


class _Ours:
    def __init__(self, directory: Path, precision: DecodingPrecision, patience: float | None) -> None:
        self._translator = Translator.load(directory, precision=precision)
        self._search = replace(SEARCH, patience=patience)

    def translate(self, sources: Sequence[list[int]], choice: Choice) -> list[tuple[str, int]]:
        torch.set_num_threads(choice.threads)
        translator = replace(self._translator, replicas=(self._translator.model,) * (choice.at_once - 1))
        lists = translator.translate_tokens(sources, self._search, choice.batch_tokens)
        return [(best.text, best.tokens) for best, *_ in lists]


class _CTranslate2:
    """All sentences in one call, which sorts and cuts them into batches itself: its fastest way."""

    def __init__(self, exported: Path, compute_type: str) -> None:
        self._exported = exported
        self._compute_type = compute_type
        self._translators: dict[tuple[int, int], Any] = {}
        self._subword = Subword.load(exported / SUBWORD)
        self._pieces = [self._subword.processor.id_to_piece(token) for token in range(self._subword.vocab_size)]

    def translate(self, sources: Sequence[list[int]], choice: Choice) -> list[tuple[str, int]]:
        outputs = self._translator(choice.at_once, choice.threads).translate_batch(
            [[self._pieces[token] for token in source[:-1]] for source in sources],
            max_batch_size=choice.batch_tokens,
            batch_type="tokens",
            beam_size=SEARCH.beam,
            length_penalty=SEARCH.alpha,
            max_input_length=0,
            max_decoding_length=max(map(len, sources)) - 1 + SEARCH.max_extra,
            disable_unk=True,
            return_end_token=True,
        )
        processor = self._subword.processor
        best = [[processor.piece_to_id(piece) for piece in output.hypotheses[0]] for output in outputs]
        return [(self._subword.decode(tokens), len(tokens)) for tokens in best]

    def _translator(self, at_once: int, threads: int) -> Any:
        import ctranslate2  # type: ignore[import-untyped]

        if (at_once, threads) not in self._translators:
            self._translators[at_once, threads] = ctranslate2.Translator(
                str(self._exported),
                device="cuda" if torch.cuda.is_available() else "cpu",
                compute_type=self._compute_type,
                inter_threads=at_once,
                intra_threads=threads,
            )
        return self._translators[at_once, threads]


class _HuggingFace:
    """Batches as ours: sorted by length, rows times the longest within a budget."""

    def __init__(self, directory: Path) -> None:
        from peers.hugging_face_model import converted

        model = load_model(directory)[0]
        assert isinstance(model, Transformer)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = converted(model).to(self._device, torch.bfloat16)
        self._subword = Subword.load(directory / SUBWORD)

    def translate(self, sources: Sequence[list[int]], choice: Choice) -> list[tuple[str, int]]:
        torch.set_num_threads(choice.threads)
        results: list[tuple[str, int]] = [("", 0)] * len(sources)
        for numbers in _batches([len(source) for source in sources], choice.batch_tokens):
            rows = [torch.tensor(sources[number]) for number in numbers]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(self._device)
            outputs = self._model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                num_beams=SEARCH.beam,
                length_penalty=SEARCH.alpha,
                max_new_tokens=tokens.shape[1] - 1 + SEARCH.max_extra,
            )
            for number, output in zip(numbers, outputs[:, 1:].tolist(), strict=True):
                length = output.index(EOS) + 1 if EOS in output else len(output)
                results[number] = (self._subword.decode(output[:length]), length)
        return results


def _batches(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[number] > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "ours, float32": partial(_Ours, precision="float32", patience=None),
    "ours, bf16": partial(_Ours, precision="bf16", patience=None),
    "ours, int8": partial(_Ours, precision="int8", patience=None),
    "ours, int8, patience 1": partial(_Ours, precision="int8", patience=1.0),
    "CTranslate2, float32": partial(_CTranslate2, compute_type="float32"),
    "CTranslate2, int8": partial(_CTranslate2, compute_type="int8"),
    "Hugging Face, bf16": _HuggingFace,
}
