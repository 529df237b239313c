"""Stage binarize: cleaned text becomes token ids on disk, which training and decoding memory-map."""

from functools import partial

from flows.process.paths import BINARIZED, CLEAN, SUBWORD_MODEL
from transformer_core.config import PARAMS_FILE, Params
from transformer_core.corpus.text import PAIR_PARTS, read_lines, splits_of
from transformer_core.corpus.tokens.binarizing import encode_split, write_split
from transformer_core.corpus.tokens.binary import Meta
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.errors import configuration_error
from transformer_core.files import new_directory


def run(params: Params) -> str:
    """Write data/binarized: training pairs of at most `binarize.max_tokens` a side, and all pairs of validation and of the test sets."""
    source, target = params.download.source, params.download.target
    max_tokens = params.binarize.max_tokens
    subword = Subword.load(SUBWORD_MODEL)
    workers = params.machine.scheduler or params.machine.workers
    write = partial(write_split, vocabulary_hash=subword.hash, vocab_size=subword.vocab_size, source=source, target=target)
    written: dict[str, Meta] = {}
    with new_directory(BINARIZED) as folder:
        for split in splits_of(CLEAN, f".{source}"):
            sides = CLEAN / f"{split}.{source}", CLEAN / f"{split}.{target}"
            limit = max_tokens if split == "train" else None
            names = read_lines(CLEAN / PAIR_PARTS) if split == "train" and (CLEAN / PAIR_PARTS).exists() else ()
            written[split] = write(folder / split, encode_split(*sides, subword, limit, workers), names=names)
        train = written["train"]
        if not train.pairs:
            fault = f"{PARAMS_FILE}: binarize.max_tokens: each of {train.dropped_too_long:,} training pairs is longer than {max_tokens}"
            raise configuration_error(fault, "Raise it.")
    tokens = f"{train.source_tokens:,} source and {train.target_tokens:,} target tokens"
    pairs = f"{train.pairs:,} training pairs, {tokens}; {train.dropped_too_long:,} longer than {max_tokens} left out"
    unknown = [_unknown(split, meta) for split, meta in written.items() if meta.source_unknown or meta.target_unknown]
    return f"{BINARIZED}: {pairs}{'; characters that the vocabulary lacks: in ' if unknown else ''}{', '.join(unknown)}"


def _unknown(split: str, meta: Meta) -> str:
    """Return the shares of the sources and of the targets of a split with a character that the vocabulary lacks."""
    source, target = ((lines or 0) / meta.pairs for lines in (meta.source_unknown, meta.target_unknown))
    return f"{source:.2%} of the sources and {target:.2%} of the targets of {split}"
