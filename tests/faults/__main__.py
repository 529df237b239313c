"""python -m tests.faults --rounds 200 --seed 1: the faults in turn; a row for each round, then a table by fault."""

import argparse
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from tests.faults.faults import FAULTS
from tests.faults.rounds import Rounds


def main() -> int:
    """Return 0 if every round ended without a problem, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--first", type=int, default=1, help="number of the first round: rounds depend on the seed and their number alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these faults")
    parser.add_argument("--out", type=Path, default=Path("faults"), help="folder of rounds.csv, which is added to, and of outputs")
    arguments = parser.parse_args()
    names = arguments.fault or list(FAULTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # So that the server ends too.
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = arguments.out / "rounds.csv"
    with TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder), arguments.out)
        try:
            for number in range(arguments.first, arguments.first + arguments.rounds):
                row = asdict(rounds.play(names[(number - 1) % len(names)], arguments.seed, number))
                print(*(f"{name}={value}" for name, value in row.items()), sep="  ", flush=True)
                pd.DataFrame([row]).to_csv(rows, mode="a", header=not rows.exists(), index=False)
        finally:
            rounds.close()
    table = pd.read_csv(rows, keep_default_na=False)
    outcome = table["outcome"].where(table["problems"] == "", "problem")
    print(pd.crosstab(table["fault"], outcome, margins=True, margins_name="all").to_markdown())
    return int((table["problems"] != "").any())


if __name__ == "__main__":
    raise SystemExit(main())
