"""Self-attention over a neighbourhood of r against all n positions (paper 4, Table 1): ``python benchmarks/restricted_attention.py``.

Forward and backward of one base-sized attention; for each n the r's are timed in turn, round after round, and medians shown with least
and most. Restricted attention should take twice the time for twice r or twice n, full attention four times for twice n.
"""

import argparse
import statistics
import time

import torch

from transformer_core.models.attention import MultiHeadAttention, Neighbourhood, Visible
from transformer_core.presets import BASE


def main() -> None:
    """Print a table of milliseconds, and of floating-point operations of scores and weighted sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--neighbourhoods", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    layer = MultiHeadAttention(BASE)
    print("| n | r | ms, median (least-most) | MFLOP of scores and sums |\n|---|---|---|---|")
    for length in options.lengths:
        x = torch.randn(1, length, BASE.d_model)
        real = torch.ones(1, length, dtype=torch.bool)
        cases: dict[int | None, Visible] = {r: Neighbourhood.centred(real, r) for r in options.neighbourhoods} | {None: None}
        times: dict[int | None, list[float]] = {r: [] for r in cases}
        for _ in range(options.rounds + 1):
            for r, visible in cases.items():
                times[r].append(_milliseconds(layer, x, visible))
        for r, measured in times.items():
            first_left_out = measured[1:]
            middle, least, most = statistics.median(first_left_out), min(first_left_out), max(first_left_out)
            flops = 2 * length * (r or length) * BASE.heads * (BASE.d_k + BASE.d_v)
            print(f"| {length} | {r or 'all'} | {middle:.1f} ({least:.1f}-{most:.1f}) | {flops / 1e6:,.0f} |")


def _milliseconds(layer: MultiHeadAttention, x: torch.Tensor, visible: Visible) -> float:
    began = time.perf_counter()
    layer(layer.queries(x), layer.keys_and_values(x), visible).sum().backward()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
