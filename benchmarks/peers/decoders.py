"""The engines of benchmarks/decoding.py: each loads one model and translates with it, in its own process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from transformer_core.config import Precision
from transformer_core.corpus.tokens.subword import EOS, PAD, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator, batches_of
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.models.precision import choose_kernels
from transformer_core.models.transformer import Transformer

SEARCH = Search(beam=4, alpha=0.6, penalty="power", max_extra=50)


@dataclass(frozen=True)
class Choice:
    """The choices of an engine: most source tokens of a batch, batches translated at once, and threads of each."""

    batch_tokens: int
    at_once: int
    threads: int


Output = tuple[str, int]  # Text and tokens, end token included, of the best translation.
Translate = Callable[[Sequence[list[int]], Choice], list[Output]]


@cache
def _engine(engine: str, directory: Path, exported: Path) -> Translate:
    return ENGINES[engine](exported if engine.startswith("CTranslate2") else directory)


def translate(
    engine: str, directory: Path, exported: Path, sources: list[list[int]], choice: Choice, one_by_one: bool
) -> tuple[float, list[Output]]:
    """Translate in this process; the model is loaded in the first call, before the clock runs.

    Args:
        engine: a key of ENGINES.
        directory: the model directory.
        exported: the same for CTranslate2.
        sources: token ids with end tokens.
        choice: settings of the engine.
        one_by_one: whether sentences come one after the other, as from a person, and not all together.

    Returns:
        The seconds, and the outputs in the order of the sources.
    """
    loaded = _engine(engine, directory, exported)
    parts = [[source] for source in sources] if one_by_one else [sources]
    began = time.perf_counter()
    outputs = [output for part in parts for output in loaded(part, choice)]
    return time.perf_counter() - began, outputs


def _ours(directory: Path, precision: Precision) -> Translate:
    loaded = Translator.load(directory, precision=precision)

    def translate(sources: Sequence[list[int]], choice: Choice) -> list[Output]:
        torch.set_num_threads(choice.threads)
        return [(best.text, best.tokens) for best, *_ in loaded.translate_tokens(sources, SEARCH, choice.batch_tokens)]

    return translate


def _ctranslate2(exported: Path, compute_type: str) -> Translate:
    """Give all sentences to one call, which sorts and cuts them into batches itself: the fastest way."""
    import ctranslate2  # type: ignore[import-untyped]

    subword = Subword.load(exported / SUBWORD)
    pieces = [subword.processor.id_to_piece(token) for token in range(subword.vocab_size)]

    @cache
    def translator(at_once: int, threads: int) -> Any:
        return ctranslate2.Translator(str(exported), "cpu", compute_type=compute_type, inter_threads=at_once, intra_threads=threads)

    def translate(sources: Sequence[list[int]], choice: Choice) -> list[Output]:
        outputs = translator(choice.at_once, choice.threads).translate_batch(
            [[pieces[token] for token in source[:-1]] for source in sources],
            max_batch_size=choice.batch_tokens,
            batch_type="tokens",
            beam_size=SEARCH.beam,
            length_penalty=SEARCH.alpha,
            max_input_length=0,
            max_decoding_length=max(map(len, sources)) - 1 + SEARCH.max_extra,
            disable_unk=True,
            return_end_token=True,
        )
        best = [[subword.processor.piece_to_id(piece) for piece in output.hypotheses[0]] for output in outputs]
        return [(subword.decode(tokens), len(tokens)) for tokens in best]

    return translate


def hugging_face_decoder(directory: Path, search: Search = SEARCH) -> Translate:
    """Translate with `generate`, in the batches of our own translator."""
    from peers.hugging_face import converted

    own = load_model(directory)[0]
    assert isinstance(own, Transformer)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choose_kernels(device)
    model = converted(own).to(device, torch.bfloat16)
    subword = Subword.load(directory / SUBWORD)

    def translate(sources: Sequence[list[int]], choice: Choice) -> list[Output]:
        torch.set_num_threads(choice.threads)
        results: list[Output] = [("", 0)] * len(sources)
        for numbers in batches_of([len(source) for source in sources], choice.batch_tokens):
            rows = [torch.tensor(sources[number]) for number in numbers]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
            outputs = model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                num_beams=search.beam,
                length_penalty=search.alpha,
                max_new_tokens=tokens.shape[1] - 1 + search.max_extra,
            )
            for number, output in zip(numbers, outputs[:, 1:].tolist(), strict=True):
                length = output.index(EOS) + 1 if EOS in output else len(output)
                results[number] = (subword.decode(output[:length]), length)
        return results

    return translate


ENGINES: dict[str, Callable[[Path], Translate]] = {
    "ours, float32": partial(_ours, precision="float32"),
    "ours, bf16": partial(_ours, precision="bf16"),
    "CTranslate2, float32": partial(_ctranslate2, compute_type="float32"),
    "CTranslate2, int8": partial(_ctranslate2, compute_type="int8"),
    "Hugging Face, bf16": hugging_face_decoder,
}
