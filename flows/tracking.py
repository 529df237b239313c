"""`python -m flows.tracking sync`: send what MLflow lacks of the records here; `flows.status` lists it."""

from flows.process.runner import reports_errors
from flows.record.run import records
from flows.record.sending import sync
from flows.record.server import tracking_uri
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import without_logins


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Send what MLflow lacks of the records here, also deleted runs.

    The exit code is 69 if MLflow is unreachable, 78 if it refuses, and 65 if a record is damaged; all others were sent.
    """
    parser = Parser(prog="python -m flows.tracking", description=main.__doc__)
    parser.add_argument("action", choices=["sync"])
    parser.parse_args(arguments)
    uri = tracking_uri(load_params().machine)
    sync(uri, again=True)
    print(f"MLflow at {without_logins(uri)} has all of {records()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
