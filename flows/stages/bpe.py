"""Stage bpe: the joint subword vocabulary, learnt from the cleaned training text of both languages (paper 5.1)."""

from itertools import chain

from flows.paths import CLEAN, SUBWORD_MODEL
from flows.runner import run_stage
from transformer_core.config import Params
from transformer_core.corpus.subword import train_subword
from transformer_core.corpus.text import read_lines
from transformer_core.files import new_directory


def run(params: Params) -> str:
    """Write data/bpe/spm.model."""
    languages = (params.download.source, params.download.target)
    lines = chain.from_iterable(read_lines(CLEAN / f"train.{language}") for language in languages)
    with new_directory(SUBWORD_MODEL.parent) as folder:
        train_subword(lines, folder / SUBWORD_MODEL.name, params.bpe)
    return f"{SUBWORD_MODEL}: {params.bpe.vocab_size:,} subwords ({params.bpe.type}) of {' and '.join(languages)}"


if __name__ == "__main__":
    raise SystemExit(run_stage("bpe", run))
