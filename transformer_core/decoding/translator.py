"""Lines in, translations out: subwords, batches of similar length, a search, text again."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_core.corpus.subword import EOS, PAD, Subword
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.ensemble import Ensemble
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.sampling import Sampling, sample
from transformer_core.errors import UserError, configuration_error
from transformer_core.models.directory import CONFIG, SUBWORD, load_model
from transformer_core.models.packed import pack
from transformer_core.models.precision import DecodingPrecision, low_precision, weights_dtype
from transformer_core.models.quantised import quantise
from transformer_core.models.translation import TranslationModel

TokenIds = Sequence[int] | NDArray[np.integer]
Decoded = TranslationModel | Ensemble

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Hypothesis:
    """A translation: its text, log-probability, and that over the length penalty, by which hypotheses are ranked."""

    text: str
    score: float
    log_probability: float
    tokens: int


@dataclass(frozen=True)
class Translator:
    """A model, or several, with their vocabulary. A translation depends on its sentence alone, whatever stands in the batch with it.

    Attributes:
        model: in evaluation mode.
        subword: its vocabulary.
        replicas: the same model again, for each batch more that is decoded at the same time: a copy on every other GPU; on a CPU itself,
            for what lies between the matrix products is too short to be shared out among threads, so two batches side by side are done
            sooner than one after the other by two threads.
    """

    model: Decoded
    subword: Subword
    replicas: tuple[Decoded, ...] = ()

    @classmethod
    def load(cls, *directories: Path, precision: DecodingPrecision = "float32", device: torch.device | None = None) -> "Translator":
        """Read model directories, the models of which translate together; arguments and errors as `load_for_decoding` has them.

        Where no device is named, all GPUs share the sentences. On a CPU as many batches are decoded at once as torch has threads.

        Raises:
            UserError: exit code 78; the models have different vocabularies.
        """
        models, subwords = zip(*(load_for_decoding(directory, precision, device) for directory in directories), strict=True)
        for directory, subword in zip(directories, subwords, strict=True):
            if subword.hash != subwords[0].hash:
                message = f"{directory}: vocabulary {subword.hash[:12]}, but {directories[0]} has {subwords[0].hash[:12]}"
                raise configuration_error(message, "Models that translate together share their vocabulary.")
        if models[0].device.type == "cpu":
            model = _together(models)
            return cls(model, subwords[0], (model,) * (torch.get_num_threads() - 1))
        others = range(1, torch.cuda.device_count()) if device is None else ()
        return cls(
            _together(models), subwords[0], tuple(_together([deepcopy(model).cuda(number) for model in models]) for number in others)
        )

    def translate(
        self,
        lines: Sequence[str],
        search: Search | Sampling,
        batch_tokens: int = BATCH_TOKENS,
        prefixes: Sequence[str] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translations of each line, best first, in the order of the lines; of an empty line one, the empty one.

        Args:
            lines: of the source language.
            search: how; it says how many translations a line has at most.
            batch_tokens: most source positions, padding counted, decoded together; a longer source is decoded alone.
            prefixes: what the translation of each line begins with, whole words.
        """
        starts = None if prefixes is None else [self.subword.encode(prefix)[:-1] for prefix in prefixes]
        return self.translate_tokens([self.subword.encode(line) for line in lines], search, batch_tokens, starts)

    def translate_tokens(
        self,
        sources: Sequence[TokenIds],
        search: Search | Sampling,
        batch_tokens: int = BATCH_TOKENS,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """The same for sources that are token ids with an end token, and prefixes without one.

        Raises:
            UserError: exit code 65; a source has more tokens than a model with learned positions has learned.
        """
        most = self.model.most_positions
        for number, source in enumerate(sources, 1):
            if most is not None and len(source) > most:
                raise UserError(
                    f"sentence {number}: {len(source)} tokens, but this model has learned {most} positions", "Split the sentence."
                )

        def decode(model: Decoded, numbers: list[int]) -> list[list[Finished]]:
            tokens = padded([sources[number] for number in numbers]).to(model.device)
            prefix = None if prefixes is None else padded([prefixes[number] for number in numbers]).to(model.device)
            if isinstance(search, Search):
                return beam_search(model, tokens, tokens != PAD, search, prefix, most)
            return sample(model, tokens, tokens != PAD, search, prefix, most)

        batches = batches_of([len(source) for source in sources], batch_tokens)
        # The coverage penalty reads what the model has just attended to, of which there is one record.
        replicas = () if isinstance(search, Search) and search.coverage else self.replicas
        results = [[Hypothesis("", 0.0, 0.0, 0)] for _ in sources]
        for numbers, outputs in zip(batches, _side_by_side(decode, batches, (self.model, *replicas)), strict=True):
            for number, finished in zip(numbers, outputs, strict=True):
                results[number] = [self._hypothesis(output) for output in finished]
        return results

    def _hypothesis(self, finished: Finished) -> Hypothesis:
        text = self.subword.decode([token for token in finished.tokens if token != EOS])
        return Hypothesis(text, finished.score, finished.log_probability, len(finished.tokens))


def load_with_subword(directory: Path) -> tuple[TranslationModel, Subword]:
    """The model of a directory, as it was trained, on the CPU, and its vocabulary.

    Raises:
        UserError: exit code 65; a file is missing or damaged, or the vocabulary is not the one the weights were trained with.
    """
    model, config = load_model(directory)
    subword = Subword.load(directory / SUBWORD)
    if subword.hash != config.vocabulary.hash:
        raise UserError(
            f"{directory / SUBWORD}: vocabulary {subword.hash[:12]}, but {directory / CONFIG} names {config.vocabulary.hash[:12]}",
            "Take spm.model and weights from the same training.",
        )
    return model, subword


def load_for_decoding(
    directory: Path, precision: DecodingPrecision = "float32", device: torch.device | None = None
) -> tuple[TranslationModel, Subword]:
    """The same, made to decode: it can no longer be trained, saved or exported.

    Args:
        directory: with weights, config.json and spm.model.
        precision: of weights and matrix products.
        device: None takes a GPU if there is one, but for int8, which is for CPUs.

    Raises:
        UserError: exit code 65 as above. 78; int8 where it cannot be, see `quantise`.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() and precision != "int8" else "cpu")
    model, subword = load_with_subword(directory)
    if precision == "int8":
        quantise(model.to(device))
    else:
        pack(model.to(device, low_precision(device, precision) or weights_dtype(precision)))
    return model, subword


def _together(models: Sequence[TranslationModel]) -> Decoded:
    return models[0] if len(models) == 1 else Ensemble(models)


def _side_by_side(
    decode: Callable[[Decoded, list[int]], list[list[Finished]]], batches: list[list[int]], models: Sequence[Decoded]
) -> Iterator[list[list[Finished]]]:
    """The outputs of the batches, in their order, as many of them decoded at a time as there are models, each by one thread."""
    if len(models) == 1 or len(batches) <= 1:
        yield from (decode(models[0], numbers) for numbers in batches)
        return
    idle: SimpleQueue[Decoded] = SimpleQueue()
    for model in models:
        idle.put(model)

    def on_idle(numbers: list[int]) -> list[list[Finished]]:
        model = idle.get()
        try:
            return decode(model, numbers)
        finally:
            idle.put(model)

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(len(models), len(batches)), "decoder", torch.set_num_threads, (1,))
    try:
        yield from pool.map(on_idle, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # Part of what was set in a thread counts for all of the process.


def padded(rows: Sequence[TokenIds]) -> torch.Tensor:
    """Token ids as rows, padded on the right to the longest: (B, T)."""
    padded = torch.full((len(rows), max(map(len, rows))), PAD, dtype=torch.long)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = torch.as_tensor(np.asarray(tokens, dtype=np.int64))
    return padded


def batches_of(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    """Numbers of the sources that hold more than an end token, longest first, cut where rows times longest passes the budget.

    The longest first, so that memory runs out at once or never, and the last to be decoded side by side are short.
    """
    batches: list[list[int]] = []
    for number in sorted((number for number, length in enumerate(lengths) if length > 1), key=lambda number: lengths[number]):
        if not batches or (len(batches[-1]) + 1) * lengths[number] > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches[::-1]
