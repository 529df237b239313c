"""Stage decode: hypotheses and n-best lists of valid and of the test sets, from the averaged model and the binarized sources."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from tqdm import tqdm

from flows.process.gpus import free_gpus
from flows.process.paths import AVERAGED, BINARIZED, DECODED, RAW, START
from flows.process.runner import echo
from transformer_core.config import MOST_INPUT, PRETRAINED, Params
from transformer_core.corpus.text import read_lines, splits_of, write_lines
from transformer_core.corpus.tokens.binary import check_split, open_split, read_meta
from transformer_core.corpus.tokens.encoding import strings_of
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import DecodingRequest, Engine, load_engine
from transformer_core.decoding.lines import with_strings
from transformer_core.decoding.translator import Hypothesis, shortened
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import new_directory, write_json
from transformer_core.models.directory import CONFIG
from transformer_core.processes import cores, cpu_name


@free_gpus()
def run(params: Params) -> str:
    """Translate valid and the test sets; write the hypotheses, the n-best lists and the statistics."""
    torch.set_num_threads(params.machine.threads or cores())
    models = [AVERAGED, *(further_models(PRETRAINED / params.decode.ensemble) if params.decode.ensemble else ())]
    # Any search: `load_engine` does not use it.
    wanted = DecodingRequest(models, Search(), params.decode.precision, shortlist=params.decode.shortlist)
    translator = load_engine(params.decode.engine, wanted)
    with new_directory(DECODED) as folder:
        statistics = {split: _decode(translator, split, params, folder) for split in splits_of(BINARIZED) if split != "train"}
        if params.parent is not None:  # For the gain over the model that the training started from.
            (folder / START).mkdir()
            wanted = DecodingRequest([params.parent], Search(), params.decode.precision)
            start = load_engine(params.decode.engine, wanted)
            for split in statistics.keys() - {"valid"}:
                _decode(start, split, params, folder / START)
        settings = params.decode.model_dump(exclude={"batch_tokens"})
        on_gpu = translator.device.type == "cuda" and torch.cuda.is_available()
        machine = torch.cuda.get_device_name() if on_gpu else cpu_name()
        # Sources and targets with a character that the vocabulary lacks, and pairs.
        metas = {split: read_meta(BINARIZED / split) for split in splits_of(BINARIZED) if (BINARIZED / split).is_dir()}
        unknown = {split: [meta.source_unknown, meta.target_unknown, meta.pairs] for split, meta in metas.items()}
        provenance = {"made": datetime.now(UTC).date().isoformat(), "machine": machine, "unknown": unknown}
        write_json(folder / "statistics.json", {**statistics, **settings, "models": len(models), **provenance})
    test = statistics["test"]
    return f"{DECODED}: test in {test['seconds']:.1f} s, {test['tokens_per_second']:,} target tok/s"


def further_models(folder: Path) -> list[Path]:
    """Return the model directories in a folder. Raises `UserError` (78): there are none."""
    if found := sorted(file.parent for file in folder.glob(f"*/{CONFIG}")):
        return found
    raise configuration_error(f"{folder}: has no folder with a model", "Copy models of other seeds into it, each into a folder of its own.")


def _decode(translator: Engine, split: str, params: Params, folder: Path) -> dict[str, float]:
    binarized, settings = BINARIZED / split, params.decode
    check_split(binarized)
    found, wanted = read_meta(binarized).vocabulary_hash, translator.subword.hash
    if found != wanted:
        message = f"{binarized}: vocabulary {found[:12]}, but {AVERAGED} was trained with {wanted[:12]}"
        raise UserError(message, "Run the whole pipeline: dvc repro")
    sources = open_split(binarized).source
    most = MOST_INPUT if translator.most_positions is None else min(MOST_INPUT, translator.most_positions - 1)
    longer = [number for number, length in enumerate(sources.lengths, 1) if length - 1 > most]
    if longer:
        echo(f"{binarized}: sources cut to {most:,} tokens: {len(longer):,}, the first is line {longer[0]:,}", sys.stderr)
    search = Search(settings.beam, settings.alpha, settings.penalty, max_extra=settings.max_extra, nbest=settings.beam)
    tokens = [shortened(sources[number], most) for number in range(len(sources))]
    began = time.monotonic()
    with tqdm(total=len(tokens), desc=f"decode {split}", unit=" sentences", leave=False, disable=None) as bar:
        lists = translator.translate_tokens(tokens, search, settings.batch_tokens, done=bar.update)
    seconds = time.monotonic() - began
    raw = read_lines(RAW / f"{split}.{params.download.source}")
    lists = [with_strings(ranked, strings_of(line, translator.subword)) for ranked, line in zip(lists, raw, strict=True)]
    write_lines(folder / f"{split}.hyp", (hypotheses[0].text for hypotheses in lists))
    write_lines(folder / f"{split}.nbest.jsonl", map(_as_json, lists))
    limits = [len(source) - 1 + settings.max_extra for source in tokens]
    if translator.most_positions is not None:
        limits = [min(limit, translator.most_positions) for limit in limits]
    return _statistics(limits, lists, seconds)


def _statistics(limits: list[int], lists: list[list[Hypothesis]], seconds: float) -> dict[str, float]:
    """Return speed and figures of the search; `cut_off` counts outputs of the maximum length, which usually repeat themselves."""
    best = [hypotheses[0] for hypotheses in lists]
    tokens = sum(hypothesis.tokens for hypothesis in best)
    return {
        "lines": len(lists),
        "seconds": round(seconds, 2),
        "target_tokens": tokens,
        "tokens_per_second": round(tokens / seconds),
        "cut_off": sum(hypothesis.tokens == limit for hypothesis, limit in zip(best, limits, strict=True)),
        "log_probability_a_token": round(sum(hypothesis.log_probability for hypothesis in best) / max(tokens, 1), 4),
        "hypotheses_a_line": round(sum(map(len, lists)) / len(lists), 2),
    }


def _as_json(hypotheses: list[Hypothesis]) -> str:
    ranked = [{"text": one.text, "score": round(one.score, 5), "log_probability": round(one.log_probability, 5)} for one in hypotheses]
    return json.dumps(ranked, ensure_ascii=False)
