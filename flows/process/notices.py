"""Notices that a cloud takes this machine back: a training then saves and ends with 75, as after SIGUSR1."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path

import requests

from flows.process.runner import echo, in_background
from transformer_core.errors import configuration_error

# Environment variables: a cloud of `_CLOUDS` or a file that appears with the notice, and another address of the cloud's metadata.
NOTICE, METADATA = "TRANSFORMER_NOTICE", "TRANSFORMER_METADATA"
_SECONDS = 5.0  # Between two questions. AWS gives two minutes, Google and Azure half of one.
Ask = Callable[..., requests.Response]
_LINK_LOCAL = "http://169.254.169.254"


def _aws(ask: Ask, address: str) -> bool:
    """A token, then 404 until an instance is to be stopped or terminated."""
    token = ask("PUT", f"{address}/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}).text
    return ask("GET", f"{address}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token}).ok


def _gcp(ask: Ask, address: str) -> bool:
    return ask("GET", f"{address}/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"}).text.strip() == "TRUE"


def _azure(ask: Ask, address: str) -> bool:
    """Events of this machine's whole group, by the names of its machines."""
    headers = {"Metadata": "true"}
    name = ask("GET", f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers=headers).text
    events = ask("GET", f"{address}/metadata/scheduledevents?api-version=2020-07-01", headers=headers).json()["Events"]
    return any(event["EventType"] in ("Preempt", "Terminate") and name in event["Resources"] for event in events)


_CLOUDS = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def watched() -> AbstractContextManager[None]:
    """Ask during the block for the notice that $TRANSFORMER_NOTICE names; when it comes, this process gets SIGUSR1.

    Raises `UserError` (78): it names neither a cloud nor a path.
    """
    named = os.environ.get(NOTICE, "")
    if not named:
        return nullcontext()
    if named not in _CLOUDS and "/" not in named:
        raise configuration_error(f"${NOTICE}: {named}: not known", f"Name {', '.join(_CLOUDS)}, or the path of a file.")
    return in_background(partial(_watch, named), "notices", 0)


def _watch(named: str, ended: threading.Event) -> None:
    session = requests.Session()
    session.trust_env = False  # No proxy has this machine's metadata.
    ask, address = partial(session.request, timeout=_SECONDS), os.environ.get(METADATA, _LINK_LOCAL)
    while not ended.is_set():
        with suppress(requests.RequestException, KeyError):  # Metadata that is away for a moment.
            if _CLOUDS[named](ask, address) if named in _CLOUDS else Path(named).exists():
                echo(f"notice of {named}: this machine is taken back", sys.stderr)
                os.kill(os.getpid(), signal.SIGUSR1)
                return
        ended.wait(_SECONDS)
