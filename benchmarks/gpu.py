"""Speed on a GPU beside others, all in one process: ``python benchmarks/gpu.py {train,decode,profile} [base] [big]``.

- train: our trainer, Hugging Face's Marian, and torch.nn.Transformer with compiled layers, on the same updates of random pairs with
  lengths as in WMT, each update one batch, in bf16. Kernels are generated and the allocator is warmed before the clock runs.
- decode: our translator and Hugging Face's `generate`, in bf16, on sentences that a base-sized copier translates: together, in batches of
  several sizes, by beam search and greedily, and one by one.
- profile: the kernels on which our training and our decoding spend the GPU's time.
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
from torch.profiler import ProfilerActivity, profile
from training import SEED, Setting, cut, flops, plan, random_pairs, random_split

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
PROFILED_BATCH = 16_384  # Source tokens.
TOP, KEPT = 16, 60  # Kernels that are printed, and that are written to --json.


def main() -> None:
    """Run one part."""
    parser = command_line(__doc__)
    parser.add_argument("part", choices=["train", "decode", "profile"])
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
        rows = {"train": train, "decode": decode, "profile": profiled}[options.part](options, Path(folder), product)
    if options.json:
        write_json(options.json, {"gpu": torch.cuda.get_device_name(), "product_flops_per_second": product, "rows": rows})


def train(options: argparse.Namespace, folder: Path, product: float) -> list[dict[str, Any]]:
    """Print a table for each setting."""
    rows = []
    for name in options.settings:
        setting = SETTINGS[name]
        split, job = job_of(setting, options.updates, folder / name)
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


def job_of(setting: Setting, updates: int, folder: Path) -> tuple[BinarizedSplit, Job]:
    """Write and open a split of random pairs; return it and the job to train on them, each update one batch."""
    folder.mkdir()
    split = random_split(setting, updates, folder)
    size = setting.size
    job = Job(
        **{name: getattr(size, name) for name in ("layers", "d_model", "d_ff", "heads", "dropout")},
        vocab_size=setting.vocab_size,
        tokens_per_update=setting.tokens_per_update,
        tokens_per_microbatch=setting.tokens_per_update,
        seed=SEED,
        updates=[cut(split, pairs, 1) for pairs in plan(setting, split, 1, updates)],
        threads=1,
        attention="sdpa",
    )
    return split, job


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


def profiled(options: argparse.Namespace, folder: Path, _: float) -> list[dict[str, Any]]:
    """Print the kernels of training and of decoding."""
    rows = []
    for name in options.settings:
        split, job = job_of(SETTINGS[name], 8, folder / name)
        run = _ours(job, split)
        run(job.updates)
        rows += kernels(f"training, {name}", partial(run, job.updates))
    write_copier(BASE, SETTINGS["base"].vocab_size, folder / "copier" / "model")
    translator = Translator.load(folder / "copier" / "model", precision="bf16")
    sources = [source for source, _ in random_pairs(SETTINGS["base"], 1_000)]
    translator.translate_tokens(sources[:100], SEARCH, PROFILED_BATCH)
    return rows + kernels("decoding, beam 4", partial(translator.translate_tokens, sources, SEARCH, PROFILED_BATCH))


def kernels(what: str, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Print and return the kernels that take most of the GPU's time, and the share of the time in which it works."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    own = [event for event in profiler.key_averages() if event.self_device_time_total > 0 and event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in own) / 1e6
    rows = [
        {
            "share of the GPU's time, %": f"{event.self_device_time_total / busy / 1e4:.1f}",
            "ms": f"{event.self_device_time_total / 1e3:.1f}",
            "calls": event.count,
            "kernel": event.key[:110],
        }
        for event in sorted(own, key=lambda event: -event.self_device_time_total)[:KEPT]
    ]
    print(f"{what}: {seconds:.3f} s under the profiler, the GPU works {busy:.3f} s of it, {sum(event.count for event in own):,} kernels")
    print(markdown(pd.DataFrame(rows[:TOP])), flush=True)
    return [{"what": what, "seconds": seconds, "busy_seconds": busy, **row} for row in rows]


if __name__ == "__main__":
    main()
