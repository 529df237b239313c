"""`python -m flows.watch CORPUS`: tell Prefect when a corpus has new data; its deployment `new-data` (prefect.yaml) then runs."""

import sys
import time
from collections.abc import Sequence

from prefect.events import Event
from prefect.settings import PREFECT_API_URL

from flows.new_data import file_of, look
from flows.places.work_pool import prefect_client
from flows.process.runner import echo, reports_errors
from transformer_core.cli.arguments import Parser, positive_float
from transformer_core.config import load_params
from transformer_core.corpus.sources.catalogue import find_entry
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import write_json

EVENT, RESOURCE = "transformer.corpus.changed", "transformer.corpus"
# Files that are younger may still be written, and a corpus has several.
SETTLED_SECONDS = 5.0


def tell(corpus: str) -> list[str]:
    """Look at a corpus once, send an event of what is new, and return its names. Raises `UserError`: as `look`; 69, Prefect is away."""
    now, new = look(find_entry(corpus, "flows.watch"), load_params().machine)
    if any(0 <= time.time() - version.time_ns / 1e9 < SETTLED_SECONDS for version in now.values()):
        return []
    if new:
        resource = {"prefect.resource.id": f"{RESOURCE}.{corpus}", "prefect.resource.name": corpus}
        event = Event.model_validate({"event": EVENT, "resource": resource, "payload": {"changed": new}})
        with prefect_client() as client:  # Not `emit_event`, which tells no failure.
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
    write_json(file_of(corpus, "told"), now)
    return new


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Tell Prefect when a corpus has new data: files, addresses on the web, teachers in the registry.

    Run it in the folder of the pipeline. An error of the first look ends it; of later ones each new one is a line on standard error.
    """
    parser = Parser(prog="python -m flows.watch", description=main.__doc__)
    parser.add_argument("corpus", metavar="CORPUS", help="name of the corpus")
    parser.add_argument("--every", metavar="SECONDS", type=positive_float, default=30.0, help="time between looks (default: 30)")
    parser.add_argument("--once", action="store_true", help="look once, as from cron")
    options = parser.parse_args(arguments)
    if not PREFECT_API_URL.value():
        raise configuration_error("PREFECT_API_URL is not set", "Set it to the address of the server that has the deployment new-data.")
    trouble: str | None = None
    while True:
        try:
            if new := tell(options.corpus):
                echo(f"{options.corpus}: new: {', '.join(new)}; Prefect has been told", sys.stdout)
            trouble = ""
        except UserError as error:
            if trouble is None:
                raise
            if str(error) != trouble:
                echo(str(error), sys.stderr)
            trouble = str(error)
        if options.once:
            return 0
        time.sleep(options.every)


if __name__ == "__main__":
    raise SystemExit(main())
