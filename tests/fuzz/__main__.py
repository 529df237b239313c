"""The long run: a row for each reader, and its findings by kind with the number of an input. Exit code 1 if there are findings."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.fuzzer import run
from tests.fuzz.model_readers import READERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", choices=[*READERS, []], metavar="READER", help=f"of {', '.join(READERS)} (all)")
    parser.add_argument("--inputs", type=int, default=20_000, metavar="N", help="of each reader (20000)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--input", type=int, metavar="N", help="only this input, with its traceback")
    options = parser.parse_args()
    numbers = range(options.inputs) if options.input is None else range(options.input, options.input + 1)
    found = 0
    for name in options.readers or READERS:
        with TemporaryDirectory() as folder:
            findings = run(READERS[name], numbers, options.seed, Path(folder).resolve())
        found += len(findings)
        print(f"{name:<20}{len(numbers):>8,} inputs {len(findings):>6,} findings", flush=True)
        for fault, count in Counter(finding.fault for finding in findings).most_common(12):
            first = next(finding for finding in findings if finding.fault == fault)
            print(f"    {count:,} x {fault}: input {first.number}")
            print(first.trace if options.input is not None else "", end="", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
