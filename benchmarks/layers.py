"""Table 1 of the paper, measured: what a layer costs, and how far apart it leaves two positions: ``python benchmarks/layers.py``.

Self-attention, restricted self-attention, the recurrent and the contiguous convolutional layer are those of the models; dilated and
separable convolutions, which no model here has, are made of PyTorch's. Measured are FLOPs and time of what Table 1 counts, over n, d, and
k or r, with the exponents of a least-squares line through the logarithms; time and peak memory of whole layers over n; the longest chain
of operations in the autograd graph; and how many layers it takes until each output has a gradient to each input. Writes every point into
--table, draws time, memory and paths into --plot and prints the tables of docs/layers.md.
"""

import argparse
import bisect
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from transformer_core.models.attention import Neighbourhood, SelfAttention, restricted_attention, scaled_dot_product_attention
from transformer_core.models.convolutional import Convolutional
from transformer_core.models.dropout import Dropout
from transformer_core.models.recurrent import Recurrent
from transformer_core.presets import ConvolutionalSize, RecurrentSize, TransformerSize

ROOT = Path(__file__).parents[1]
HEAD = 64  # d_k of both of the paper's models: twice the width is twice as many heads.
WIDTH, KERNEL, NEIGHBOURS = 512, 3, 16  # Of whole layers.
MEMORY_WIDTH = 256
PATH_WIDTH = 4  # Of layers whose gradients alone matter.
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
MEMORY_LENGTHS = (512, 1024, 2048, 4096)
PATH_LENGTHS = (8, 16, 32, 64, 128)
TOLERANCE = 0.15
LEAST_SECONDS = 0.02
MEMORY = ("MB, forward", "MB, training")

Run = Callable[[], Tensor]


class Sizes(NamedTuple):
    """Positions n, width d, and the kernel k or the neighbourhood r of the layers that have one."""

    n: int
    d: int
    size: int = 0


class Attention(nn.Module):
    """Self-attention of the models, over all positions or over r round each one."""

    def __init__(self, d: int, r: int | None) -> None:
        super().__init__()
        head = min(HEAD, d)
        self.attention = SelfAttention(TransformerSize(layers=1, d_model=d, d_ff=d, heads=d // head, d_k=head, d_v=head, dropout=0.0))
        self.r = r

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) to the same."""
        query, memory = self.attention.of_itself(x)
        visible = None if self.r is None else neighbours(x.shape[1], self.r)
        attended: Tensor = self.attention(query, memory, visible)
        return attended


class Recurrence(nn.Module):
    """The recurrent models' encoder: one LSTM layer, from left to right."""

    def __init__(self, d: int) -> None:
        super().__init__()
        size = RecurrentSize(layers=1, d_model=d, dropout=0.0, attention="none", bidirectional=False)
        self.lstm = Recurrent(size, vocab_size=1).encoder

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) to the same."""
        read: Tensor = self.lstm(x)[0]
        return read


class GatedLayer(nn.Module):
    """An encoder layer of the convolutional model: a gated convolution round each position, and a residual."""

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.layer = Convolutional(ConvolutionalSize(layers=1, d_model=d, dropout=0.0, kernel=k), vocab_size=1).encoder[0]

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) to the same."""
        convolved: Tensor = self.layer(x, torch.ones(*x.shape[:2], 1, dtype=torch.bool))
        return convolved


class Convolutions(nn.Module):
    """Convolutions of PyTorch, one after the other, behind `before` positions of zeros."""

    def __init__(self, *convolutions: nn.Conv1d, before: int = 0) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*convolutions)
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) to the same."""
        convolved: Tensor = self.convolutions(functional.pad(x.transpose(1, 2), (self.before, 0)))
        return convolved.transpose(1, 2)


def dilated(d: int, k: int, number: int) -> Convolutions:
    """Layer `number` of a stack, from 0: each position reads itself and k - 1 before it, k^number apart.

    Were the kernels centred, some pairs near the ends of a sentence would stay apart in a stack of any depth: each distance has one way
    through the dilations 1, k, k^2 ..., with steps to both sides, and it is lost where it leaves the sentence.
    """
    return Convolutions(nn.Conv1d(d, d, k, dilation=k**number), before=k**number * (k - 1))


def depthwise(d: int, k: int) -> nn.Conv1d:
    """A convolution of each channel by itself."""
    return nn.Conv1d(d, d, k, groups=d, padding=k // 2)


def neighbours(n: int, r: int) -> Neighbourhood:
    """The encoder's neighbourhoods in a sentence of n tokens."""
    return Neighbourhood.centred(torch.ones(1, n, dtype=torch.bool), r)


@dataclass(frozen=True)
class Layer:
    """A row of Table 1.

    Attributes:
        build: from d, the kernel or neighbourhood, and the number in its stack to a module from (B, n, d) to the same.
        path: what the longest path should be, exactly, of n positions and a kernel or neighbourhood.
        sizes: kernels or neighbourhoods whose paths are measured.
        size: of the whole layer that is timed.
        memory: exponents of peak memory in n that are expected of a forward pass, and of training.
        one_way: whether it reads earlier positions alone; paths are then those to an output from itself and the inputs before it.
    """

    build: Callable[[int, int, int], nn.Module]
    path: Callable[[int, int], int]
    sizes: tuple[int, ...] = (0,)
    size: int = 0
    memory: tuple[int, int] = (1, 1)
    one_way: bool = False


def restricted_path(n: int, r: int) -> int:
    """The first layer takes r - 1 positions where a window is moved inward, each other one the shorter side of a window."""
    return 1 + max(0, -(-(n - r) // ((r - 1) // 2)))


def contiguous_path(n: int, k: int) -> int:
    """Each layer takes half a kernel to a side."""
    return -(-(n - 1) // (k // 2))


def dilated_path(n: int, k: int) -> int:
    """L layers take k^L - 1 positions."""
    return next(depth for depth in range(n) if k**depth >= n)


LAYERS = {
    "self-attention": Layer(lambda d, _, __: Attention(d, None), lambda _, __: 1, memory=(1, 2)),
    "restricted self-attention": Layer(lambda d, r, _: Attention(d, r), restricted_path, (8, 16), NEIGHBOURS),
    "recurrent": Layer(lambda d, _, __: Recurrence(d), lambda n, _: n, one_way=True),
    "convolution, contiguous": Layer(lambda d, k, _: GatedLayer(d, k), contiguous_path, (3, 5), KERNEL),
    "convolution, dilated": Layer(dilated, dilated_path, (3, 5), KERNEL, one_way=True),
    "convolution, separable": Layer(lambda d, k, _: Convolutions(depthwise(d, k), nn.Conv1d(d, d, 1)), contiguous_path, (3, 5), KERNEL),
}


@dataclass(frozen=True)
class Counted:
    """What Table 1 counts of a layer, and where it is timed: around `middle`, one size at a time.

    Attributes:
        make: from sizes, sentences in the batch and a type of numbers to a function that runs it.
        formula: operations as Table 1 has them, up to a factor.
        batch: sentences side by side. A time is that of the batch, FLOPs are those of a sentence.
        gradients: whether what the backward pass needs is kept.
    """

    make: Callable[[Sizes, int, torch.dtype], Run]
    formula: Callable[[Sizes], float]
    middle: Sizes
    n: tuple[int, ...]
    d: tuple[int, ...]
    size: tuple[int, ...] = ()
    batch: int = 1
    gradients: bool = False

    def points(self) -> list[tuple[str, Sizes]]:
        """What varies, and all sizes, of each point."""
        swept = {"n": self.n, "d": self.d, "size": self.size}
        return [(variable, self.middle._replace(**{variable: value})) for variable, values in swept.items() for value in values]


def attended(sizes: Sizes, batch: int, dtype: torch.dtype) -> Run:
    """The products of self-attention without its projections, over all positions, or r where `sizes` has one."""
    query, key, value = torch.randn(3, batch, sizes.d // HEAD, sizes.n, HEAD, dtype=dtype)
    none = Dropout(0.0)
    if not sizes.size:
        return lambda: scaled_dot_product_attention(query, key, value, None, none)
    near = neighbours(sizes.n, sizes.size)
    return lambda: restricted_attention(query, key, value, near, none)


def whole(build: Callable[[int, int, int], nn.Module]) -> Callable[[Sizes, int, torch.dtype], Run]:
    """All that a layer does."""

    def make(sizes: Sizes, batch: int, dtype: torch.dtype) -> Run:
        return partial(build(sizes.d, sizes.size, 0).to(dtype), torch.randn(batch, sizes.n, sizes.d, dtype=dtype))

    return make


def of(name: str) -> Callable[[Sizes, int, torch.dtype], Run]:
    """All that a layer of Table 1 does."""
    return whole(LAYERS[name].build)


def convolution(make: Callable[[Sizes, int, torch.dtype], Run]) -> Counted:
    """A convolution over all channels, contiguous or dilated: the same sizes for both."""
    return Counted(make, lambda s: s.size * s.n * s.d**2, Sizes(512, 512, 3), (256, 512, 1024, 2048), (128, 256, 512, 1024), (3, 5, 9, 17))


COUNTED = {
    # No tensor of this and of restricted attention is larger than 16 MB: from 32 MB on, glibc takes memory from the system for each call
    # and gives it back, which takes as long as the products (docs/layers.md).
    "self-attention, weights kept": Counted(
        attended, lambda s: s.n**2 * s.d, Sizes(512, 256), (256, 512, 1024), (128, 256, 512, 1024), gradients=True
    ),
    "self-attention, fused": Counted(attended, lambda s: s.n**2 * s.d, Sizes(1024, 512), (512, 1024, 2048), (128, 256, 512, 1024)),
    "restricted self-attention": Counted(
        attended, lambda s: s.size * s.n * s.d, Sizes(512, 128, 16), (256, 512, 1024, 2048), (64, 128, 256, 512), (16, 32, 64)
    ),
    # Sentences side by side share the reading of the weights; at d = 1024 these are larger than the cache of most machines.
    "recurrent": Counted(of("recurrent"), lambda s: s.n * s.d**2, Sizes(64, 512), (32, 64, 128, 256), (128, 256, 512), batch=16),
    "convolution, contiguous": convolution(of("convolution, contiguous")),
    "convolution, dilated": convolution(whole(lambda d, k, _: dilated(d, k, 1))),
    # The kernel hardly counts beside the width; it is varied in the depthwise part alone.
    "convolution, separable": Counted(
        of("convolution, separable"),
        lambda s: s.size * s.n * s.d + s.n * s.d**2,
        Sizes(2048, 512, 3),
        (256, 512, 1024, 2048),
        (256, 512, 1024),
    ),
    "its depthwise part": Counted(
        whole(lambda d, k, _: Convolutions(depthwise(d, k))),
        lambda s: s.size * s.n * s.d,
        Sizes(2048, 256, 33),
        (512, 1024, 2048),
        (128, 256, 512),
        (33, 65, 129),
    ),
}


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="of timing")
    parser.add_argument("--table", type=Path, default=ROOT / "docs/layers.csv")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/layers.svg")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parts = [flops(), counted_times(options.rounds), layer_times(options.rounds), memory(), depths(PATH_LENGTHS), paths(PATH_LENGTHS)]
    table = pd.concat(parts, ignore_index=True)
    table.to_csv(options.table, index=False, float_format="%.6g", lineterminator="\n")
    print("\n\n".join(f"{title}:\n\n{markdown(frame)}" for title, frame in summaries(table).items()))
    draw(table, options.plot)


def row(measure: str, layer: str, variable: str, sizes: Sizes, value: float, theory: float | None = None) -> dict[str, object]:
    """A point of the table; `theory` is up to a factor, but for paths, where it is exact."""
    return {"measure": measure, "layer": layer, "variable": variable, **sizes._asdict(), "value": value, "theory": theory}


def flops() -> pd.DataFrame:
    """FLOPs of what Table 1 counts, for one sentence."""
    rows = []
    for name, counted in COUNTED.items():
        for variable, sizes in counted.points():
            rows.append(row("FLOPs", name, variable, sizes, counted_flops(counted, sizes), counted.formula(sizes)))
    return pd.DataFrame(rows)


def counted_flops(counted: Counted, sizes: Sizes) -> int:
    """FLOPs of products, as PyTorch counts them.

    In float64 PyTorch unrolls the LSTM into products, which are counted; in float32 it is one operation, which is not. With gradients
    attention keeps its weights, and its products are counted too.
    """
    run = counted.make(sizes, 1, torch.float64)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def counted_times(rounds: int) -> pd.DataFrame:
    """Milliseconds of what Table 1 counts, in float32."""
    points = [(name, counted, *point) for name, counted in COUNTED.items() for point in counted.points()]
    runs = [(counted.make(sizes, counted.batch, torch.float32), counted.gradients) for _, counted, _, sizes in points]
    rows = [row("ms", name, variable, sizes, 0, counted.formula(sizes)) for name, counted, variable, sizes in points]
    return pd.DataFrame(rows).assign(**milliseconds(runs, rounds))


def layer_times(rounds: int) -> pd.DataFrame:
    """Milliseconds of whole layers, in float32, without gradients, one sentence at a time."""
    points = [(name, Sizes(n, WIDTH, layer.size)) for name, layer in LAYERS.items() for n in LENGTHS]
    runs = [(of(name)(sizes, 1, torch.float32), False) for name, sizes in points]
    rows = [row("ms of the whole layer", name, "n", sizes, 0) for name, sizes in points]
    return pd.DataFrame(rows).assign(**milliseconds(runs, rounds))


def milliseconds(runs: Sequence[tuple[Run, bool]], rounds: int) -> dict[str, list[float]]:
    """CPU time of each run, with gradients kept or not: median, least and most.

    All are run in turn, round after round, so that noise meets all of them; each time once before, since the others have filled the caches,
    and then as often as fits into LEAST_SECONDS.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for measured, (run, gradients) in zip(times, runs, strict=True):
            with torch.set_grad_enabled(gradients):
                repeats = 1 + int(LEAST_SECONDS / cpu_seconds(run, 1))
                measured.append(cpu_seconds(run, repeats) / repeats * 1000)
    return {"value": [statistics.median(own) for own in times], "least": [min(own) for own in times], "most": [max(own) for own in times]}


def cpu_seconds(run: Run, repeats: int) -> float:
    """CPU time of the process: another process takes a core away without adding to it."""
    began = time.process_time()
    for _ in range(repeats):
        run()
    return time.process_time() - began


def memory() -> pd.DataFrame:
    """Greatest bytes that a whole layer has allocated at a time, beside its weights and inputs, in float32, in MB."""
    runs: dict[tuple[str, str, Sizes], Run] = {}
    for name, layer in LAYERS.items():
        for n in MEMORY_LENGTHS:
            sizes = Sizes(n, MEMORY_WIDTH, layer.size)
            run = of(name)(sizes, 1, torch.float32)
            for measure, how in zip(MEMORY, (without_gradients, with_backward), strict=True):
                runs[measure, name, sizes] = how(run)
    rows = []
    for (measure, name, sizes), peak in zip(runs, peaks(list(runs.values())), strict=True):
        expected = LAYERS[name].memory[MEMORY.index(measure)]
        rows.append(row(measure, name, "n", sizes, peak / 2**20, sizes.n**expected))
    return pd.DataFrame(rows)


def without_gradients(run: Run) -> Run:
    """A forward pass as translation has it."""
    return torch.no_grad()(run)


def with_backward(run: Run) -> Run:
    """A forward and a backward pass as training has it; gradients of weights are part of what they allocate."""

    def trained() -> Tensor:
        total = run().sum()
        total.backward()
        return total.detach()

    return trained


def peaks(runs: Sequence[Run]) -> list[int]:
    """Greatest bytes that each run has allocated at a time, of PyTorch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number, run in enumerate(runs):
            with record_function(f"run {number}"):
                run()
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    began = {event["name"]: event["ts"] for event in events if event.get("cat") == "user_annotation"}
    starts = [began[f"run {number}"] for number in range(len(runs))]
    changes: list[list[int]] = [[] for _ in runs]
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        changes[bisect.bisect_right(starts, event["ts"]) - 1].append(event["args"]["Bytes"])
    return [max(accumulate(own)) for own in changes]


def depths(lengths: Sequence[int]) -> pd.DataFrame:
    """Longest chains of operations of one layer: what cannot run at the same time (Table 1, sequential operations)."""
    rows = []
    for name, layer in LAYERS.items():
        for n in lengths:
            sizes = Sizes(n, PATH_WIDTH, layer.size)
            depth = graph_depth(of(name)(sizes, 1, torch.float64)())
            rows.append(row("operations in sequence", name, "n", sizes, depth, n if name == "recurrent" else 1))
    return pd.DataFrame(rows)


def graph_depth(output: Tensor) -> int:
    """Nodes on the longest chain of the autograd graph behind a tensor."""
    before = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in before:
            before[node] = [earlier for earlier, _ in node.next_functions if earlier is not None]
            waiting += before[node]
    depth: dict[object, int] = {}
    for node in TopologicalSorter(before).static_order():
        depth[node] = 1 + max((depth[earlier] for earlier in before[node]), default=0)
    return max(depth.values())


def paths(lengths: Sequence[int], layers: dict[str, Layer] = LAYERS) -> pd.DataFrame:
    """Longest paths between two positions, in layers, or in steps of the recurrent layer."""
    rows = []
    for name, layer in layers.items():
        for size in layer.sizes:
            for n in lengths:
                length = recurrent_path(n) if name == "recurrent" else path_length(layer, n, size)
                rows.append(row("longest path", name, "n", Sizes(n, PATH_WIDTH, size), length, layer.path(n, size)))
    return pd.DataFrame(rows)


def path_length(layer: Layer, n: int, size: int) -> int:
    """The fewest layers of a stack after which each of n outputs has a gradient to each input; more layers take none away."""
    pairs = torch.ones(n, n, dtype=torch.bool)
    pairs = pairs.tril() if layer.one_way else pairs
    stack: list[nn.Module] = []

    def connects(depth: int) -> bool:
        stack.extend(layer.build(PATH_WIDTH, size, number).double() for number in range(len(stack), depth))
        return bool(dependences(stack[:depth], n)[pairs].all())

    most = 1
    while not connects(most):
        most *= 2
    return bisect.bisect_left(range(most), True, lo=most // 2, key=connects)


def dependences(layers: Sequence[nn.Module], n: int) -> Tensor:
    """Where the gradient of output i to input j is not zero in float64: (n, n), i by j."""
    # Sentence i of the batch is for output i: sentences do not meet, so one backward pass serves all outputs.
    x = y = torch.randn(1, n, PATH_WIDTH, dtype=torch.float64).repeat(n, 1, 1).requires_grad_()
    for layer in layers:
        # Position by position, as in the Transformer: without a norm a deep stack grows until its gates saturate.
        y = functional.layer_norm(layer(y), (PATH_WIDTH,))
    own = y[torch.arange(n), torch.arange(n)]
    (gradient,) = torch.autograd.grad((own * torch.randn_like(own)).sum(), x)
    return gradient.ne(0).any(dim=2)


def recurrent_path(n: int) -> int:
    """Steps from the first input to the last output: there is one more than places where cutting the state parts the two."""
    lstm = Recurrence(PATH_WIDTH).double().lstm
    return 1 + sum(meet(lstm, n, cut, torch.clone) and not meet(lstm, n, cut, torch.detach) for cut in range(1, n))


def meet(lstm: nn.Module, n: int, cut: int, passed: Callable[[Tensor], Tensor]) -> bool:
    """Whether the last output has a gradient to the first input, where `passed` hands on the state after `cut` positions."""
    x = torch.randn(1, n, PATH_WIDTH, dtype=torch.float64, requires_grad=True)
    _, (hidden, cell) = lstm(x[:, :cut])
    read, _ = lstm(x[:, cut:], (passed(hidden), passed(cell)))
    (gradient,) = torch.autograd.grad(read[0, -1].sum(), x)
    return bool(gradient[0, 0].ne(0).any())


def exponent(sizes: pd.Series, values: pd.Series) -> float:
    """The slope of a least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes.to_numpy(float)), np.log(values.to_numpy(float)), 1)[0])


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Measured and theoretical exponents of FLOPs, time and memory, a row a measure, layer and variable.

    The theory is fitted as the measurement is: exact where the formula has one term. Of memory, what a doubling of n adds is fitted, so
    that what does not depend on n falls out.
    """
    rows = []
    fitted = table[table["measure"].isin(["FLOPs", "ms", *MEMORY])]
    for (measure, layer, variable), points in fitted.groupby(["measure", "layer", "variable"], sort=False):
        sizes, values = points[variable], points[["value", "theory"]]
        if measure in MEMORY:
            sizes, values = sizes[1:], values.diff()[1:]
        rows.append(
            {
                "measure": measure,
                "layer": layer,
                "variable": variable,
                "over": f"{points[variable].min()}-{points[variable].max()}",
                "theory": exponent(sizes, values["theory"]),
                "fitted": exponent(sizes, values["value"]),
            }
        )
    return pd.DataFrame(rows)


def summaries(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of docs/layers.md by their titles."""
    fits = exponents(table)
    tables = {"exponents": cost_exponents(fits)}
    for measure, digits in (
        ("ms of the whole layer", 1),
        (MEMORY[0], 1),
        (MEMORY[1], 1),
        ("operations in sequence", 0),
        ("longest path", 0),
    ):
        tables[measure] = by_length(table[table["measure"] == measure], digits)
        if measure in MEMORY:
            own = fits[fits["measure"] == measure]
            tables[measure]["exponent"] = own["fitted"].map("{:.2f}".format).to_numpy()
            tables[measure]["theory"] = own["theory"].map("{:.0f}".format).to_numpy()
    return tables


def cost_exponents(fits: pd.DataFrame) -> pd.DataFrame:
    """Exponents of FLOPs and of time beside those of the theory."""
    keys = ["layer", "variable", "over", "theory"]
    flop, ms = (fits[fits["measure"] == measure].rename(columns={"fitted": measure})[[*keys, measure]] for measure in ("FLOPs", "ms"))
    both = flop.merge(ms, on=keys, validate="one_to_one")
    within = (both["ms"] - both["theory"]).abs() <= TOLERANCE * both["theory"]
    letter = both["layer"].str.startswith("restricted").map({True: "r", False: "k"})
    both["variable"] = both["variable"].where(both["variable"] != "size", letter)
    numbers = {column: both[column].map("{:.2f}".format) for column in ("theory", "FLOPs", "ms")}
    return both.assign(**numbers, **{"time within 15%": within.map({True: "yes", False: "no"})})


def by_length(points: pd.DataFrame, digits: int) -> pd.DataFrame:
    """A row a layer, with its kernel or neighbourhood, and a column a length; a path that is not the exact one has that in brackets."""
    label = points["layer"] + points["size"].map(lambda size: f", {size}" if size else "")
    text = points["value"].map(f"{{:,.{digits}f}}".format)
    if (points["measure"] == "longest path").all():
        text += points["theory"].map(" ({:,.0f})".format).where(points["value"] != points["theory"], "")
    shown = pd.DataFrame({"layer": label, "n": points["n"].map("n = {:,}".format), "text": text})
    return shown.pivot(index="layer", columns="n", values="text").loc[label.unique(), shown["n"].unique()].reset_index()


def markdown(table: pd.DataFrame) -> str:
    """A table of text as Markdown."""
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in rows)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Time, memory of training, and longest path over n, a line a layer."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "layers"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(ncols=3, figsize=(12, 4.6), layout="constrained")
    drawn = (
        ("ms of the whole layer", f"CPU time of a layer, ms (d = {WIDTH})"),
        (MEMORY[1], f"peak memory in training, MB (d = {MEMORY_WIDTH})"),
        ("longest path", "longest path, layers or steps"),
    )
    for panel, (measure, title) in zip(axes, drawn, strict=True):
        own = table[table["measure"] == measure]
        for (name, layer), marker in zip(LAYERS.items(), "osD^vx", strict=True):
            points = own[(own["layer"] == name) & (own["size"] == layer.size)]
            panel.plot(points["n"], points["value"], marker=marker, markersize=4, label=name)
        panel.set(xlabel="positions n", title=title)
        panel.loglog()
        lengths = own["n"].unique()
        panel.set_xticks(lengths, [f"{n:,}" for n in lengths])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=6, loc="outside lower center")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
