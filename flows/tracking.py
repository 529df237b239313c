"""`python -m flows.tracking sync`: send what MLflow lacks of the records here; `status` lists them."""

from flows.process.runner import reports_errors
from flows.record.run import NAME, read_record, records
from flows.record.sending import sync, unsent
from flows.record.store import tracking_uri
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import without_logins


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Send what MLflow lacks of the records here, also deleted runs (sync), or list the runs that it may lack (status).

    The exit code is 69 if MLflow is unreachable, 78 if it refuses, and 65 if a record is damaged; all others were sent.
    """
    parser = Parser(prog="python -m flows.tracking", description=main.__doc__)
    parser.add_argument("action", choices=["sync", "status"])
    action, uri = parser.parse_args(arguments).action, tracking_uri(load_params().machine)
    if action == "status":
        for record in filter(None, map(read_record, unsent(uri))):
            print(f"{record.id}: {record.tags.get(NAME, '')}, {record.status.lower()}")
        return 0
    sync(uri, again=True)
    print(f"MLflow at {without_logins(uri)} has all of {records()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
