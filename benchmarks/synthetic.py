"""Number of synthetic pairs a second: ``python benchmarks/synthetic.py [--pairs 100000] [--workers 1 2]``."""

import time

from common import command_line

from transformer_core.synthetic.stream import generate


def main() -> None:
    """Time the training split with each number of processes, their start included, and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    for workers in options.workers:
        start = time.perf_counter()
        words = sum(pair.source.count(" ") + 1 for pair in generate("train", options.pairs, seed=1, workers=workers))
        seconds = time.perf_counter() - start
        print(
            f"{workers} worker(s): {options.pairs:,} pairs in {seconds:.1f} s, {options.pairs / seconds:,.0f} pairs/s, "
            f"{words / options.pairs:.1f} English words a sentence"
        )


if __name__ == "__main__":
    main()
