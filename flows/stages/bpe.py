"""Stage bpe: the joint subword vocabulary, learnt from the cleaned training text of both languages (paper 5.1)."""

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from flows.process.paths import CLEAN, SUBWORD_MODEL
from flows.record.documents import tags_of_corpus
from transformer_core.config import PARAMS_FILE, PRETRAINED, Bpe, Params
from transformer_core.corpus.placeholders import SYMBOLS
from transformer_core.corpus.text import read_lines, read_raw_lines
from transformer_core.corpus.tokens.subword import SPACE_MARK, UNK, Subword, sampled, train_subword, train_symbols
from transformer_core.errors import configuration_error
from transformer_core.files import new_directory
from transformer_core.processes import in_child


def run(params: Params) -> str:
    """Write data/bpe/spm.model: the one of `bpe.init_from`, or a new one. Raises `UserError` (78): a tag of the corpus is no symbol."""
    settings, languages = params.bpe, [params.download.source, params.download.target]
    # Stage download checks the same, and does not run again when the symbols change.
    for tag in sorted(tags_of_corpus().difference(settings.user_symbols)):
        fault = f"{PARAMS_FILE}: bpe.user_symbols: must have {tag}, the tag of sentences of data/raw, got {settings.user_symbols}"
        raise configuration_error(fault, "Add it, so that it is one token.")
    if params.clean.placeholders:
        settings = settings.model_copy(update={"user_symbols": [*settings.user_symbols, *SYMBOLS]})
    if params.download.task.to_symbols:
        # A symbol is one token and not learnt from text; the mark is SentencePiece's for the space before it.
        symbols = sorted({SPACE_MARK + symbol for line in read_lines(CLEAN / f"train.{languages.pop()}") for symbol in line.split()})
        settings = settings.model_copy(update={"user_symbols": [*settings.user_symbols, *symbols]})
    if settings.init_from is not None:
        return _copied_model(PRETRAINED / settings.init_from, settings)
    with new_directory(SUBWORD_MODEL.parent) as folder:
        in_child(partial(_learn, [CLEAN / f"train.{language}" for language in languages], folder / SUBWORD_MODEL.name, settings))
    return f"{SUBWORD_MODEL}: {Subword.load(SUBWORD_MODEL).vocab_size:,} subwords ({params.bpe.type}) of {' and '.join(languages)}"


def _learn(texts: Sequence[Path], model: Path, settings: Bpe) -> None:
    """Learn a vocabulary from texts of equally many lines, or from a sample of these."""
    sides: Iterable[Iterable[str]] = map(read_lines, texts)
    if settings.sample is not None:
        pairs = sum(1 for _ in read_raw_lines(texts[0]))
        sides = (sampled(lines, pairs, settings.sample, settings.seed) for lines in sides)
    if settings.type == "symbols":
        train_symbols(sides, model, settings)
    else:
        train_subword(chain.from_iterable(sides), model, settings)


def _copied_model(directory: Path, settings: Bpe) -> str:
    """Copy a model with the size, the symbols and the case of the settings. Raises `UserError` (78): it is missing or differs."""
    model = directory / SUBWORD_MODEL.name
    if not model.exists():
        fault = f"{PARAMS_FILE}: bpe.init_from: {directory} holds no {SUBWORD_MODEL.name}"
        raise configuration_error(fault, f"See {PRETRAINED}/README.md.")
    subword = Subword.load(model)
    for key, made in (("lowercase", subword.lowercases), ("byte_fallback", subword.has_bytes)):
        if made != getattr(settings, key):
            raise configuration_error(f"{PARAMS_FILE}: bpe.{key}: must be {str(made).lower()} of {model}, got {str(not made).lower()}")
    if not set(settings.normalise) <= {*subword.forms, *(["width"] if "nfkc" in subword.forms else [])}:
        raise configuration_error(f"{PARAMS_FILE}: bpe.normalise: {model} was learnt with other forms")
    if subword.vocab_size != settings.vocab_size:
        fault = f"bpe.vocab_size: {settings.vocab_size}, but {model} has {subword.vocab_size} subwords"
        raise configuration_error(f"{PARAMS_FILE}: {fault}", f"Set it to {subword.vocab_size}.")
    for symbol in settings.user_symbols:
        if subword.processor.piece_to_id(symbol) == UNK:
            fault = f"{PARAMS_FILE}: bpe.init_from: {model} has no symbol {symbol}"
            raise configuration_error(fault, "Set it to null, so that a vocabulary with the symbol is learnt, or do without the symbol.")
    with new_directory(SUBWORD_MODEL.parent) as folder:
        shutil.copyfile(model, folder / SUBWORD_MODEL.name)
    return f"{SUBWORD_MODEL}: {subword.vocab_size:,} subwords, taken from {directory}"
