"""Send MLflow what it has not got of the journals of this repository."""

import argparse
import sys

from flows.record.journal import JOURNALS
from flows.record.sending import sync
from transformer_core.config import load_params, tracking_uri
from transformer_core.errors import ExitCode, UserError


def main(arguments: list[str] | None = None) -> int:
    """`python -m flows.tracking sync`: send what is left; exit code 69 where MLflow is away."""
    parser = argparse.ArgumentParser(prog="python -m flows.tracking", description=main.__doc__)
    parser.add_subparsers(required=True, metavar="sync").add_parser("sync", help="send to MLflow what the journals hold and it has not got")
    parser.parse_args(arguments)
    try:
        uri = tracking_uri(load_params().machine)
        sync(uri)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"MLflow at {uri} has all of {JOURNALS}")
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
