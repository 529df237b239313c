"""The long run: a table of readers, inputs and findings. Exit code 1 if there are findings."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.fuzzer import Outcome, run
from tests.fuzz.readers import READERS

_MOST_KINDS = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the readers and print a row for each, and its findings by kind with the number of an input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("readers", nargs="*", choices=[*READERS, []], metavar="READER", help=f"of {', '.join(READERS)} (all)")
    parser.add_argument("--inputs", type=int, default=20_000, metavar="N", help="of each reader (20000)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--input", type=int, metavar="N", help="only this input, with its traceback")
    options = parser.parse_args(arguments)
    numbers = range(options.inputs) if options.input is None else range(options.input, options.input + 1)
    print(f"{'reader':<16}{'inputs':>8}{'accepted':>10}{'refused':>9}{'findings':>10}{'slowest ms':>12}{'greatest MB':>13}")
    found = 0
    for name in options.readers or READERS:
        with TemporaryDirectory() as folder:
            outcome = run(READERS[name], numbers, options.seed, Path(folder).resolve())
        found += len(outcome.findings)
        counts = f"{len(numbers):>8,}{outcome.accepted:>10,}{outcome.refused:>9,}{len(outcome.findings):>10,}"
        print(f"{name:<16}{counts}{outcome.slowest_ms:>12,.0f}{outcome.greatest_mb:>13,.0f}", flush=True)
        _print_findings(outcome, whole=options.input is not None)
    return int(found > 0)


def _print_findings(outcome: Outcome, whole: bool) -> None:
    for fault, count in outcome.kinds.most_common(_MOST_KINDS):
        first = next(finding for finding in outcome.findings if finding.fault == fault)
        print(f"    {count:,} x {fault}: input {first.number}", flush=True)
        if whole:
            print(first.trace)


if __name__ == "__main__":
    sys.exit(main())
