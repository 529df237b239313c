"""Kubernetes: an Indexed Job by kubectl, with a pod for each node, which mounts the storage with this repository.

    python -m flows.places.kubernetes STAGE LOG

is what a pod runs. A lost pod is started again by Kubernetes, `RETRIES` times for each node.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from flows.places.jobs import Job, Seen, ask, render, run_as_node
from flows.places.slurm import ENDING_SECONDS, RENDEZVOUS_PORT
from flows.process.runner import echo, reports_errors
from flows.process.signals import stop_on_signals
from transformer_core.errors import configuration_error
from transformer_core.places import Kubernetes

RETRIES = 10
_AWAY = ("Unable to connect", "connection refused", "i/o timeout", "TLS handshake timeout", "etcdserver", "ServiceUnavailable")
_kubectl = partial(ask, "Kubernetes", _AWAY, "kubectl")


class KubernetesJobs:
    """The jobs of kubectl's context."""

    def __init__(self, place: Kubernetes, job: Job) -> None:
        self._place, self._job = place, job

    def find(self) -> str | None:
        """Return the name of the job, unless it has ended or there is none."""
        return self._job.name if self.look(self._job.name).phase != "ended" else None

    def submit(self) -> str:
        """Create the job, in the place of one of its name that has ended, and return its name."""
        _kubectl("delete", "job", self._job.name, "--ignore-not-found")
        _kubectl("apply", "--filename", "-", text=self.manifest())
        return self._job.name

    def manifest(self) -> str:
        """Return the service and the job. A patch changes the job as `kubectl patch` does: it merges lists such as `env` by name."""
        place, job = self._place, self._job
        folder, mount = Path.cwd(), Path(place.mount)
        if not folder.is_relative_to(mount):
            raise configuration_error(f"machine.places: mount: {folder} is not in {mount}, where the claim is mounted")
        values: dict[str, Any] = {
            **place.model_dump(),
            "name": job.name,
            "stage": job.stage,
            "folder": str(folder),
            "log": str(job.log),
            "port": RENDEZVOUS_PORT,
            "retries": RETRIES,
            "grace": job.machine.grace_seconds + ENDING_SECONDS,
        }
        text = render("kubernetes-job.yaml", values)
        if place.patch is None:
            return text
        service, separator, manifest = text.rpartition("---\n")
        patch = ["patch", "--local", "--type", "strategic", "--patch-file", place.patch, "--filename", "-", "--output", "yaml"]
        return service + separator + _kubectl(*patch, text=manifest)

    def look(self, number: str) -> Seen:
        found = _kubectl("get", "job", number, "--ignore-not-found", "--output", "json")
        status = json.loads(found)["status"] if found.strip() else {"conditions": [{"type": "Failed", "status": "True"}]}
        if any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in status.get("conditions", [])):
            return Seen("ended")
        ready, nodes = status.get("ready", 0), self._place.nodes
        return Seen("running") if ready == nodes else Seen("waiting", f"{ready} of {nodes} pods are ready")

    def stop(self, number: str, running: bool) -> None:
        """Delete the job, which stays until its pods have ended."""
        del running
        _kubectl("delete", "job", number, "--ignore-not-found", "--cascade=foreground", "--wait=false")


@reports_errors
def main(stage: str, log: str) -> int:
    """Run a stage in a pod, whose output goes to the pod's log and to the file that the submitting process follows."""
    stop_on_signals()
    node = os.environ["TRANSFORMER_NODE_RANK"]
    return run_as_node(stage, Path(), Path(log), partial(echo, stream=sys.stdout), "" if node == "0" else f"{node}: ")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
