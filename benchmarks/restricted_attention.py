"""Self-attention over a neighbourhood of r against all n positions (paper 4, Table 1): ``python benchmarks/restricted_attention.py``.

Times forward and backward of one base-sized attention. For each n all r are timed in turn, round after round; the table has medians, least
and most. In theory restricted attention takes twice the time for twice r or twice n, full attention four times for twice n.
"""

import time
from functools import partial

import torch
from common import command_line, in_turn, spread

from transformer_core.models.attention import MultiHeadAttention, Neighbourhood, Visible
from transformer_core.presets import BASE


def main() -> None:
    """Print a table of milliseconds, and of floating-point operations of scores and weighted sums."""
    parser = command_line(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--neighbourhoods", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    layer = MultiHeadAttention(BASE)
    print("| n | r | ms, median (least-most) | MFLOP of scores and sums |\n|---|---|---|---|")
    for length in options.lengths:
        x, real = torch.randn(1, length, BASE.d_model), torch.ones(1, length, dtype=torch.bool)
        runs = {r: partial(milliseconds, layer, x, Neighbourhood.centred(real, r) if r else None) for r in (*options.neighbourhoods, None)}
        for r, times in in_turn(runs, options.rounds + 1).items():
            flops = 2 * length * (r or length) * BASE.heads * (BASE.d_k + BASE.d_v)
            print(f"| {length} | {r or 'all'} | {spread(times[1:], '.1f')} | {flops / 1e6:,.0f} |")  # The first round is warm-up.


def milliseconds(layer: MultiHeadAttention, x: torch.Tensor, visible: Visible) -> float:
    """Return the time of one forward and backward pass."""
    began = time.perf_counter()
    layer(layer.queries(x), layer.keys_and_values(x), visible).sum().backward()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
