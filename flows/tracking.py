"""`python -m flows.tracking sync`: send what MLflow lacks of this repository's journals."""

from flows.process.runner import reports_errors
from flows.record.journal import JOURNALS
from flows.record.sending import sync
from flows.record.server import connect, reaching
from flows.record.store import tracking_uri
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import without_logins


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Send what MLflow lacks of this repository's journals, also deleted runs. The exit code is 69 if MLflow is unreachable."""
    parser = Parser(prog="python -m flows.tracking", description=main.__doc__)
    parser.add_argument("action", choices=["sync"])
    parser.parse_args(arguments)
    uri = tracking_uri(load_params().machine)
    with reaching(uri):
        connect(uri)  # It corrects the paths in a record that was moved, also if nothing is unsent.
    sync(uri, lost_too=True)
    print(f"MLflow at {without_logins(uri)} has all of {JOURNALS}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
