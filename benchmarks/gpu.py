"""Speed on a GPU beside others, all in one process: ``python benchmarks/gpu.py {train,decode} [base] [big]``.

- train: our trainer, Hugging Face's Marian, and torch.nn.Transformer with compiled layers, on the same updates of random pairs with
  lengths as in WMT, each update one batch, in bf16. Kernels are generated and the allocator is warmed before the clock runs.
- decode: our translator and Hugging Face's `generate`, in bf16, on sentences that a base-sized copier translates: together, in batches of
  several sizes, by beam search and greedily, and one by one.
MFU is defined in training.py. Each part prints tables and writes raw figures to --json.
"""

import argparse
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import transformers
from common import command_line, in_turn, markdown, spread
from peers import hugging_face, plain_torch
from peers import ours as ours_peer
from peers.copier import write_copier
from peers.decoders import SEARCH, Choice, hugging_face_decoder
from peers.job import Job, Training
from peers.matmul import rate as product_rate
from training import Choice as Alternatives
from training import Setting, flops, job_of, plan, random_pairs, random_split

from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.decoding.translator import Translator
from transformer_core.files import write_json
from transformer_core.models.architectures import build
from transformer_core.models.precision import choose_kernels
from transformer_core.presets import BASE
from transformer_core.training.devices import Rank
from transformer_core.training.update import seed_everything

DEVICE = torch.device("cuda")
SETTINGS = {
    "base": Setting("base", 37_000, 25_000, 40, 28, 0.55),
    "big": Setting("big", 37_000, 25_000, 20, 28, 0.55),
}
RANK = Rank(0, 1, DEVICE)
SENTENCES = 2_000
ALONE = 20


def main() -> None:
    """Run one part."""
    parser = command_line(__doc__)
    parser.add_argument("part", choices=["train", "decode"])
    parser.add_argument("settings", nargs="*", default=["base", "big"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20, help="of a round")
    parser.add_argument("--batches", type=int, nargs="+", default=[4_096, 16_384, 65_536], help="source tokens of a batch")
    parser.add_argument("--without", nargs="*", default=[], help="names of contenders")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    choose_kernels(DEVICE)
    product = product_rate(DEVICE)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"best 4096 x 4096 bf16 product: {product / 1e12:,.0f} TFLOP/s", flush=True)
    with TemporaryDirectory() as folder:
        rows = {"train": train, "decode": decode}[options.part](options, Path(folder), product)
    if options.json:
        write_json(options.json, {"gpu": torch.cuda.get_device_name(), "product_flops_per_second": product, "rows": rows})


def train(options: argparse.Namespace, folder: Path, product: float) -> list[dict[str, Any]]:
    """Print a table for each setting."""
    rows = []
    for name in options.settings:
        setting = SETTINGS[name]
        split = random_split(setting, options.updates, folder / name)
        job = job_of(setting, split, plan(setting, split, 1, options.updates), Alternatives(1, "sdpa", 1))
        pairs = [pair for update in job.updates for batch in update for pair in batch]
        source_tokens, target_tokens = (int(side.lengths[pairs].sum()) for side in (split.source, split.target))
        work = float(flops(setting, pd.Series([source_tokens]), pd.Series([target_tokens])).iloc[0])
        table = []
        for contender, make in CONTENDERS.items():
            if contender in options.without:
                continue
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            try:
                run = make(job, split)
                run(job.updates)
                warm = time.perf_counter() - began
                runs = [run(job.updates) for _ in range(options.rounds)]
            except Exception:  # The others are measured all the same.
                traceback.print_exc()
                continue
            assert all(one.target_tokens == target_tokens for one in runs), (runs, target_tokens)
            rates = [target_tokens / one.seconds for one in runs]
            row = {
                "setting": name,
                "contender": contender,
                "target tok/s": spread(rates, ",.0f"),
                "MFU, %": spread([100 * work / one.seconds / product for one in runs], ".1f"),
                "ms an update": f"{1000 * min(one.seconds for one in runs) / len(job.updates):.1f}",
                "peak memory, GB": f"{torch.cuda.max_memory_allocated() / 1e9:.1f}",
                "start, s": f"{warm:.0f}",
                "data wait, %": "-" if runs[0].data_wait_share is None else f"{100 * runs[0].data_wait_share:.1f}",
            }
            table.append(row)
            print(row, flush=True)
            rows.append({**row, "rates": rates, "source_tokens": source_tokens, "target_tokens": target_tokens, "flops": work})
            del run
        print(markdown(pd.DataFrame(table)), flush=True)
    return rows


def _ours(job: Job, split: BinarizedSplit) -> Callable[[Any], Training]:
    seed_everything(job.seed, 0, 0)
    model = build(ours_peer.size_of(job), job.vocab_size).to(DEVICE)

    repeated = ours_peer.Repeated(model, split, ours_peer.settings_of(job, len(job.updates)), RANK)
    return lambda _: repeated.train()


def _hugging_face(job: Job, split: BinarizedSplit) -> Callable[[Any], Training]:
    model = hugging_face.new_model(job).to(DEVICE)
    return lambda updates: hugging_face.train(model, split, updates, DEVICE)


def _plain_torch(job: Job, split: BinarizedSplit) -> Callable[[Any], Training]:
    model = plain_torch.compiled(job, DEVICE)
    return lambda updates: plain_torch.train(model, model, split, updates, DEVICE)


CONTENDERS: dict[str, Callable[[Job, BinarizedSplit], Callable[[Any], Training]]] = {
    "ours": _ours,
    "torch.nn.Transformer, compiled": _plain_torch,
    "Hugging Face": _hugging_face,
}


def decode(options: argparse.Namespace, folder: Path, _: float) -> list[dict[str, Any]]:
    """Print a table of beam search and greedy search in batches, and of beam search one by one."""
    setting = SETTINGS["base"]
    write_copier(BASE, setting.vocab_size, folder / "copier" / "model")
    sources = [source for source, _ in random_pairs(setting, SENTENCES)]
    rows, table = [], []
    cases = [(4, tokens, sources) for tokens in options.batches] + [(4, 1, sources[:ALONE])]
    cases += [(1, tokens, sources) for tokens in options.batches]
    for beam, tokens, lines in cases:
        contenders: dict[str, Callable[[], tuple[float, int, int]]] = {
            name: partial(_decoded, translate, lines, tokens) for name, translate in _decoders(folder / "copier" / "model", beam).items()
        }
        for run in contenders.values():
            run()
        runs = in_turn(contenders, options.rounds)
        ours = runs["ours"]
        for name, own in runs.items():
            rates = [produced / seconds for seconds, produced, _ in own]
            row = {
                "beam": beam,
                "source tokens a batch": "one sentence" if tokens == 1 else f"{tokens:,}",
                "contender": name,
                "target tok/s": spread(rates, ",.0f"),
                "ours / this": spread([theirs[0] / mine[0] for mine, theirs in zip(ours, own, strict=True)], ".2f"),
                "peak memory, GB": f"{max(peak for *_, peak in own) / 1e9:.1f}",
                "target tokens": own[0][1],
            }
            table.append(row)
            rows.append({**row, "rates": rates})
            print(row, flush=True)
    print(markdown(pd.DataFrame(table)), flush=True)
    return rows


def _decoders(directory: Path, beam: int) -> dict[str, Any]:
    search = replace(SEARCH, beam=beam)
    translator = Translator.load(directory, precision="bf16")

    def ours(sources: Sequence[list[int]], choice: Choice) -> list[tuple[str, int]]:
        return [(best.text, best.tokens) for best, *_ in translator.translate_tokens(sources, search, choice.batch_tokens)]

    return {"ours": ours, "Hugging Face": hugging_face_decoder(directory, search)}


def _decoded(translate: Any, sources: list[list[int]], tokens: int) -> tuple[float, int, int]:
    """Return seconds, tokens of the outputs and peak memory."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    began = time.perf_counter()
    outputs = translate(sources, Choice(tokens, 1, 1))
    torch.cuda.synchronize()
    return time.perf_counter() - began, sum(count for _, count in outputs), torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()
