"""Translation of lines by one model or several: lines to subwords, batches of similar length, search, subwords to text."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue

import torch
from torch import Tensor

from transformer_core.config import PAPER_SEARCH, DecodingPrecision
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import PAD, Subword, TokenIds, padded
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.hypotheses import Finished, StepModel
from transformer_core.decoding.restricted import Shortlisted
from transformer_core.errors import UserError, configuration_error
from transformer_core.models.directory import CONFIG, MODEL_FILES, SUBWORD, ModelConfig, load_model, read_config
from transformer_core.models.ops.choice import prepare_for_decoding
from transformer_core.models.ops.decoding_graphs import graphed
from transformer_core.models.precision import choose_kernels, low_precision, precision_name, weights_dtype
from transformer_core.models.translation import DecoderState, TranslationModel
from transformer_core.tasks import TAG, TARGETS, task_of

BATCH_TOKENS = PAPER_SEARCH.batch_tokens


@dataclass
class EnsembleState:
    states: list[DecoderState]

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        for state in self.states:
            state.select(hypotheses, sentences)


class Ensemble:
    """Models that share a vocabulary and translate together by the mean of their probabilities."""

    def __init__(self, models: Sequence[TranslationModel]) -> None:
        self._models = models
        self.device, self.output_weight = models[0].device, models[0].output_weight  # All have the number type of the first.
        self.most_positions = min((model.most_positions for model in models if model.most_positions is not None), default=None)

    def start(self, source: Tensor, source_mask: Tensor) -> EnsembleState:
        """Encode (B, S) sources, see `TranslationModel.start`."""
        return EnsembleState([model.start(source, source_mask) for model in self._models])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Decode (B*K,) newest tokens to (B*K, V) log-probabilities of the next token."""
        steps = [model.step(tokens, part) for model, part in zip(self._models, state.states, strict=True)]
        exact = [logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=1) for logits in steps]
        return torch.stack(exact).logsumexp(dim=0) - math.log(len(exact))


Decoder = TranslationModel | Ensemble
Done = Callable[[int], object]  # Called with numbers of sources that are translated, as `tqdm.update` is.


@dataclass(frozen=True)
class Hypothesis:
    """A translation."""

    made_of: str | Subword  # The text, or the vocabulary that makes `text` of `ids` when it is first read: most of a beam's are not.
    score: float  # Value that ranks hypotheses: the log-probability divided by the length penalty.
    log_probability: float
    tokens: int  # Number of tokens, end token included; 0 for an empty line's translation.
    ids: list[int] = field(default_factory=list)  # The tokens, if the text is made of them.

    @cached_property
    def text(self) -> str:
        return self.made_of if isinstance(self.made_of, str) else self.made_of.decode(self.ids)

    @classmethod
    def of(cls, finished: Finished, subword: Subword) -> "Hypothesis":
        return cls(subword, finished.score, finished.log_probability, len(finished.tokens), finished.tokens)


@dataclass(frozen=True)
class Translator:
    """A model, or several, in evaluation mode, with their vocabulary. On a CPU a translation does not depend on the rest of its batch."""

    model: Decoder
    subword: Subword
    replicas: tuple[Decoder, ...] = ()  # Copies of the model on further GPUs, which decode batches at the same time.
    shortlist: Shortlist | None = None  # The subwords that the translation of a sentence may have; None allows all.
    constraint: Callable[[StepModel, Subword], StepModel] | None = None  # The task's, see `Task`.
    strict: bool = True  # Whether a sentence whose logits are not finite is an error. Otherwise its translation is empty.

    @property
    def most_positions(self) -> int | None:
        """Largest number of tokens on either side; None for any number."""
        return self.model.most_positions

    @cached_property
    def _captured(self) -> dict[int, StepModel]:
        """The model and its replicas, with captured steps where that is possible; kept, since the memory of captures is."""
        models = (self.model, *self.replicas)
        if self.constraint is not None:
            return {id(model): self.constraint(model, self.subword) for model in models}
        return {id(model): graphed(model) for model in models}

    @property
    def device(self) -> torch.device:
        return self.model.device

    @classmethod
    def load(
        cls,
        *directories: Path,
        precision: DecodingPrecision = "float32",
        device: torch.device | None = None,
        shortlist: bool = False,
        replicas: bool = True,
    ) -> "Translator":
        """Load model directories, whose models translate together; arguments and errors as in `load_for_decoding`.

        Without a device all GPUs share the sentences, or with no `replicas` the first has them all. Raises `UserError`: 78; the models have
        different languages or vocabularies, or `shortlist` is asked for and there are several models or the directory has none. 65; the
        shortlist is damaged.
        """
        languages = [(config.source, config.target) for config in (read_config(directory / CONFIG) for directory in directories)]
        for directory, direction in zip(directories, languages, strict=True):
            if direction != languages[0]:
                message = f"{directory}: translates {' to '.join(direction)}, but {directories[0]} {' to '.join(languages[0])}"
                raise configuration_error(message, "Models that translate together have one direction.")
        models, subwords = zip(*(load_for_decoding(directory, precision, device) for directory in directories), strict=True)
        for directory, subword in zip(directories, subwords, strict=True):
            if subword.hash != subwords[0].hash:
                message = f"{directory}: vocabulary {subword.hash[:12]}, but {directories[0]} has {subwords[0].hash[:12]}"
                raise configuration_error(message, "Models that translate together share their vocabulary.")
        allowed = Shortlist.load(check_shortlist(directories), subwords[0].vocab_size) if shortlist else None
        others = range(1, torch.cuda.device_count()) if replicas and device is None and models[0].device.type == "cuda" else ()
        copies = tuple(_together([deepcopy(model).cuda(number) for model in models]) for number in others)
        constraint = task_of(languages[0][1]).constraint
        return cls(_together(models), subwords[0], copies, allowed, resolve_name(constraint) if constraint else None)

    def translate_tokens(
        self,
        sources: Sequence[TokenIds],
        search: Search,
        batch_tokens: int = BATCH_TOKENS,
        prefixes: Sequence[Sequence[int]] | None = None,
        done: Done = int,
    ) -> list[list[Hypothesis]]:
        """Return the translations of each source, best first; an empty source has a single, empty translation.

        Args:
            sources: token ids with an end token.
            search: settings of beam search, which also bound the number of translations of a source.
            batch_tokens: largest number of source positions in a batch, padding included; a longer source is decoded alone.
            prefixes: beginning of each translation, token ids without an end token.
            done: called with the number of sources in each batch.

        Raises `UserError`: 65; a source has more tokens than a model with learned positions has learned. 78; `strict`, and the logits of a
        sentence are not finite: those of a good model may overflow in fp16.
        """
        most = self.model.most_positions
        for number, source in enumerate(sources, 1):
            check_length(source, most, f"sentence {number}")

        def decode(model: Decoder, numbers: list[int]) -> list[list[Finished]]:
            tokens = _tensor([sources[number] for number in numbers], model.device)
            starts = [[] if prefixes is None else list(prefixes[number]) for number in numbers]
            prefix = None if prefixes is None else _tensor(starts, model.device)
            if self.shortlist is None:
                return beam_search(self._captured[id(model)], tokens, tokens != PAD, search, prefix, most)
            assert isinstance(model, TranslationModel)
            lists = [self.shortlist.of(sources[number], start) for number, start in zip(numbers, starts, strict=True)]
            shortlisted = Shortlisted(model, lists)
            columns = None if prefix is None else torch.searchsorted(shortlisted.ids, prefix)
            outputs = beam_search(shortlisted, tokens, tokens != PAD, search, columns, most)
            ids = shortlisted.ids.tolist()  # Outputs are columns of the shortlists.
            return [[output._replace(tokens=[ids[column] for column in output.tokens]) for output in finished] for finished in outputs]

        batches = batches_of([len(source) for source in sources], batch_tokens)
        results = [[Hypothesis("", 0.0, 0.0, 0)] for _ in sources]
        for numbers, outputs in zip(batches, _side_by_side(decode, batches, (self.model, *self.replicas)), strict=True):
            for number, finished in zip(numbers, outputs, strict=True):
                if finished:
                    results[number] = [Hypothesis.of(output, self.subword) for output in finished]
                elif self.strict and self.constraint:
                    fault = f"max_extra: {search.max_extra} is too few for a tree, or its logits are not finite"
                    raise configuration_error(fault, "Raise it.")
                elif self.strict:
                    weights = self.model.output_weight.dtype
                    remedy = "Take bf16 or float32." if weights == torch.float16 else "Take another checkpoint, or train again."
                    raise configuration_error(f"precision {precision_name(weights)}: the logits of a sentence are not finite", remedy)
            done(len(numbers))
        done(len(sources) - sum(map(len, batches)))  # Empty lines.
        return results


def check_shortlist(directories: Sequence[Path]) -> Path:
    """Return the file of the shortlist of the only model. Raises `UserError` (78): there are several models, or the model has none."""
    if len(directories) > 1:
        raise configuration_error("a shortlist: not supported with several models", "Translate without it, or name one model.")
    file = directories[0] / SHORTLIST
    if not file.is_file():
        raise configuration_error(f"{file}: no such file", "Set average.shortlist and repeat stage average, or translate without it.")
    return file


def shortened(tokens: TokenIds, most: int) -> TokenIds:
    """Return the first `most` tokens of a source and its end token, or all of it if it is not longer."""
    return tokens if len(tokens) - 1 <= most else [*tokens[:most], tokens[-1]]


def check_length(tokens: TokenIds, most_positions: int | None, where: str, engine: str = "") -> None:
    """Raise `UserError` (65) if a sentence has more tokens than the model has positions; None stands for any number of them.

    `where` names the sentence, for example by file and line; `engine` has so few positions, and is empty if the model learned them.
    """
    if most_positions is not None and len(tokens) > most_positions:
        has = f"has {most_positions} positions in {engine}" if engine else f"has learned {most_positions} positions"
        raise UserError(f"{where}: {len(tokens)} tokens, but this model {has}", "Split the sentence.")


def targets_of(config: ModelConfig, subword: Subword) -> list[str]:
    """Return the target languages of a model of several directions, sorted; of a model of one direction none."""
    return sorted(found[1] for piece in subword.pieces if (found := TAG.fullmatch(piece))) if config.target == TARGETS else []


def load_subword(directory: Path, config: ModelConfig) -> Subword:
    """Return the vocabulary of a model directory. Raises `UserError` (65): its file is missing or damaged, or not that of config.json."""
    subword = Subword.load(directory / SUBWORD, MODEL_FILES)
    if subword.hash != config.vocabulary.hash:
        fault = f"{directory / SUBWORD}: vocabulary {subword.hash[:12]}, but {directory / CONFIG} names {config.vocabulary.hash[:12]}"
        raise UserError(fault, "Take spm.model and weights from the same training.")
    if subword.vocab_size != config.vocabulary.size:
        raise UserError(f"{directory / SUBWORD}: {subword.vocab_size:,} subwords, but the weights are for {config.vocabulary.size:,}")
    return subword


def load_for_decoding(
    directory: Path, precision: DecodingPrecision = "float32", device: torch.device | None = None
) -> tuple[TranslationModel, Subword]:
    """Return the model and its vocabulary for decoding only: the model cannot be trained, saved or exported.

    Without a device it is on a GPU if there is one. Raises `UserError`: see `load_model` and `load_subword`; exit code 78 for int8.
    """
    if precision == "int8":
        raise configuration_error("precision int8: the engine torch has none", "Take the engine ctranslate2, or another precision.")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choose_kernels(device)
    model, config = load_model(directory)
    subword = load_subword(directory, config)
    prepare_for_decoding(model.to(device, low_precision(device, precision) or weights_dtype(precision)))
    return model, subword


def _together(models: Sequence[TranslationModel]) -> Decoder:
    return models[0] if len(models) == 1 else Ensemble(models)


def _side_by_side(
    decode: Callable[[Decoder, list[int]], list[list[Finished]]], batches: list[list[int]], models: Sequence[Decoder]
) -> Iterator[list[list[Finished]]]:
    """Yield the outputs of the batches in order; one batch per model is decoded at a time."""
    if len(models) == 1 or len(batches) <= 1:
        yield from (decode(models[0], numbers) for numbers in batches)
        return
    idle, local = SimpleQueue[Decoder](), threading.local()
    for model in models:
        idle.put(model)

    def take_one() -> None:
        local.model = idle.get()

    pool = ThreadPoolExecutor(len(models), "decoder", take_one)
    try:
        yield from pool.map(lambda numbers: decode(local.model, numbers), batches)
    finally:
        pool.shutdown(cancel_futures=True)


def _tensor(rows: Sequence[TokenIds], device: torch.device) -> Tensor:
    return torch.from_numpy(padded(rows)).to(device)


def batches_of(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    """Return batches of the indices of sources with more than an end token; rows times longest of a batch is at most `batch_tokens`.

    A longer source is a batch of its own. The longest come first, so that out-of-memory occurs at once, and so that the last batches that
    are decoded in parallel are short.
    """
    batches: list[list[int]] = []
    for number in sorted((number for number, length in enumerate(lengths) if length > 1), key=lambda number: lengths[number]):
        if not batches or (len(batches[-1]) + 1) * lengths[number] > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches[::-1]
