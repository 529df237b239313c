"""Table 1 of the paper, measured: the cost of each layer type, and its longest path: ``python benchmarks/layers.py``.

Measured are FLOPs and time of the operations that Table 1 counts, over n, d, and k or r, with the exponents of a least-squares line through
the logarithms; time of whole layers over n; the longest chain of operations in the autograd graph; and the number of layers until each
output has a gradient to each input. Writes every point into --table, draws time and paths into --plot and prints the exponents.
"""

import bisect
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import ROOT, command_line, in_turn, markdown, svg_figure
from layer_types import COUNTED, LAYERS, Counted, LayerType, Run, Sizes, recurrence, whole
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

WIDTH = 512  # Of the layers that are timed as a whole.
PATH_WIDTH = 4  # Only the gradients of these layers are used.
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
PATH_LENGTHS = (8, 16, 32, 64, 128)
LEAST_SECONDS = 0.02

Row = dict[str, Any]


def main() -> None:
    """Measure, print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of timing")
    parser.add_argument("--table", type=Path, default=ROOT / "docs/layers.csv")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/layers.svg")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = [*costs(options.rounds), *layer_times(options.rounds), *depths(PATH_LENGTHS), *paths(PATH_LENGTHS)]
    table = pd.DataFrame(rows).astype({"theory": "Int64"})
    table.to_csv(options.table, index=False, float_format="%.6g", lineterminator="\n")
    fits = exponents(table)
    numbers = {column: fits[column].map("{:.2f}".format) for column in ("theory", "FLOPs", "ms")}
    print(markdown(fits.assign(**numbers)))
    draw(table, options.plot)


def row(measure: str, layer: str, variable: str, sizes: Sizes, value: float, theory: float | None = None) -> Row:
    """Return a point of the table; `theory` is up to a factor, except for paths, where it is exact."""
    return {"measure": measure, "layer": layer, "variable": variable, **sizes._asdict(), "value": value, "theory": theory}


def costs(rounds: int) -> list[Row]:
    """Return FLOPs of one sentence, and milliseconds in float32, of the operations that Table 1 counts."""
    flops, times, runs = [], [], []
    for name, counted in COUNTED.items():
        for variable, sizes in counted.points():
            theory = counted.formula(sizes)
            flops.append(row("FLOPs", name, variable, sizes, counted_flops(counted, sizes), theory))
            times.append(row("ms", name, variable, sizes, 0, theory))
            runs.append((counted.make(sizes, counted.batch, torch.float32), counted.gradients))
    return flops + timed(times, runs, rounds)


def counted_flops(counted: Counted, sizes: Sizes) -> int:
    """Return the FLOPs of products, as PyTorch counts them.

    In float64 PyTorch unrolls the LSTM into products, which are counted; in float32 it is one operation, which is not. With gradients
    attention keeps its weights, and its products are counted too.
    """
    run = counted.make(sizes, 1, torch.float64)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def over_n(lengths: Sequence[int], width: int) -> list[tuple[str, LayerType, Sizes]]:
    """Return each layer type at each length."""
    return [(name, layer, Sizes(n, width, layer.size)) for name, layer in LAYERS.items() for n in lengths]


def layer_times(rounds: int) -> list[Row]:
    """Return milliseconds of whole layers, in float32, without gradients, one sentence at a time."""
    points = over_n(LENGTHS, WIDTH)
    runs = [(whole(layer.build, sizes, 1, torch.float32), False) for _, layer, sizes in points]
    return timed([row("ms of the whole layer", name, "n", sizes, 0) for name, _, sizes in points], runs, rounds)


def timed(rows: Sequence[Row], runs: Sequence[tuple[Run, bool]], rounds: int) -> list[Row]:
    """Return the rows with the CPU time of their runs, gradients kept or not, in milliseconds: median, least and most.

    All runs take turns, round after round. In its turn each runs once, since the others have filled the caches, and then as often as fits
    into LEAST_SECONDS.
    """

    def milliseconds(run: Run, gradients: bool) -> float:
        # CPU time of the process: another process that takes a core away does not add to it.
        cpu_seconds = Timer(run, timer=time.process_time).timeit
        with torch.set_grad_enabled(gradients):
            repeats = 1 + int(LEAST_SECONDS / cpu_seconds(1))
            return cpu_seconds(repeats) / repeats * 1000

    times = in_turn({number: partial(milliseconds, *run) for number, run in enumerate(runs)}, rounds)
    return [
        {**row, "value": statistics.median(own), "least": min(own), "most": max(own)} for row, own in zip(rows, times.values(), strict=True)
    ]


def depths(lengths: Sequence[int]) -> list[Row]:
    """Return the longest chains of operations of one layer: those that cannot run at the same time (Table 1, sequential operations)."""
    rows = []
    for name, layer, sizes in over_n(lengths, PATH_WIDTH):
        depth = graph_depth(whole(layer.build, sizes, 1, torch.float64)())
        rows.append(row("operations in sequence", name, "n", sizes, depth, sizes.n if name == "recurrent" else 1))
    return rows


def graph_depth(output: Tensor) -> int:
    """Return the number of nodes on the longest chain of the autograd graph behind a tensor."""
    before: dict[Any, list[Any]] = {}
    waiting: list[Any] = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in before:
            before[node] = [earlier for earlier, _ in node.next_functions if earlier is not None]
            waiting += before[node]
    depth: dict[Any, int] = {}
    for node in TopologicalSorter(before).static_order():
        depth[node] = 1 + max((depth[earlier] for earlier in before[node]), default=0)
    return max(depth.values())


def paths(lengths: Sequence[int], names: Sequence[str] = tuple(LAYERS)) -> list[Row]:
    """Return the longest paths between two positions, in layers, or in steps of the recurrent layer."""
    rows = []
    for name, size, n in [(layer, size, n) for layer in names for size in LAYERS[layer].sizes for n in lengths]:
        length = recurrent_path(n) if name == "recurrent" else path_length(LAYERS[name], n, size)
        rows.append(row("longest path", name, "n", Sizes(n, PATH_WIDTH, size), length, LAYERS[name].path(n, size)))
    return rows


def path_length(layer: LayerType, n: int, size: int) -> int:
    """Return the fewest layers of a stack after which each of n outputs has a gradient to each input; more layers remove none."""
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
    """Return where the gradient of output i to input j is not zero in float64: (n, n), i by j."""
    # Sentence i of the batch is for output i: sentences do not mix, so one backward pass serves all outputs.
    x = y = torch.randn(1, n, PATH_WIDTH, dtype=torch.float64).repeat(n, 1, 1).requires_grad_()
    for layer in layers:
        # Position by position, as in the Transformer: without a norm a deep stack grows until its gates saturate.
        y = functional.layer_norm(layer(y), (PATH_WIDTH,))
    own = y[torch.arange(n), torch.arange(n)]
    (gradient,) = torch.autograd.grad((own * torch.randn_like(own)).sum(), x)
    return gradient.ne(0).any(dim=2)


def recurrent_path(n: int) -> int:
    """Return the steps from the first input to the last output: one more than the places where cutting the state separates the two."""
    lstm = recurrence(PATH_WIDTH).double().module

    def depends(cut: int, passed: Callable[[Tensor], Tensor]) -> bool:
        """Return whether the last output has a gradient to the first input if `passed` maps the state after `cut` positions."""
        x = torch.randn(1, n, PATH_WIDTH, dtype=torch.float64, requires_grad=True)
        _, (hidden, cell) = lstm(x[:, :cut])
        outputs, _ = lstm(x[:, cut:], (passed(hidden), passed(cell)))
        (gradient,) = torch.autograd.grad(outputs[0, -1].sum(), x)
        return bool(gradient[0, 0].ne(0).any())

    return 1 + sum(depends(cut, torch.clone) and not depends(cut, torch.detach) for cut in range(1, n))


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Return measured and theoretical exponents of FLOPs and time: slopes of least-squares lines through the logarithms.

    The theory is fitted as the measurements are: exact where the formula has one term.
    """
    costs = table[table["measure"].isin(["FLOPs", "ms"])]
    rows = []
    for (layer, variable), points in costs.groupby(["layer", "variable"], sort=False):
        sizes = points[variable]
        fits = {measure: exponent(own[variable], own["value"]) for measure, own in points.groupby("measure")}
        over, theory = f"{sizes.min()}-{sizes.max()}", exponent(sizes, points["theory"])
        rows.append({"layer": layer, "variable": variable, "over": over, "theory": theory, **fits})
    return pd.DataFrame(rows)


def exponent(sizes: pd.Series, values: pd.Series) -> float:
    """Return the slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values.astype(float)), 1)[0])


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw time and longest path over n, a line for each layer."""
    drawn = {
        "ms of the whole layer": f"CPU time of a layer, ms (d = {WIDTH})",
        "longest path": "longest path, layers or steps",
    }
    with svg_figure(path, panels=2, size=(9, 4.6)) as (figure, panels):
        for panel, (measure, title) in zip(panels, drawn.items(), strict=True):
            own = table[table["measure"] == measure]
            for (name, layer), marker in zip(LAYERS.items(), "osD^v", strict=True):
                points = own[(own["layer"] == name) & (own["size"] == layer.size)]
                panel.plot(points["n"], points["value"], marker=marker, markersize=4, label=name)
            panel.set(xlabel="positions n", title=title)
            panel.loglog()
            lengths = own["n"].unique()
            panel.set_xticks(lengths, [f"{n:,}" for n in lengths])
            panel.minorticks_off()
            panel.yaxis.set_major_formatter("{x:,.0f}")
            panel.grid(alpha=0.3)
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")


if __name__ == "__main__":
    main()
