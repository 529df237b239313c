"""Kubernetes: an Indexed Job by kubectl, with a pod for each node, which mounts the storage with this repository.

    python -m flows.places.kubernetes STAGE LOG

is what a pod runs. A lost pod is started again by Kubernetes, `RETRIES` times for each node.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from flows.places.jobs import Scheduler, Seen, ask, run_as_node
from flows.process.runner import echo, reports_errors
from flows.process.signals import stop_on_signals
from transformer_core.errors import configuration_error
from transformer_core.places import Kubernetes

RETRIES = 10
_AWAY = ("Unable to connect", "refused", "i/o timeout", "TLS handshake timeout", "etcdserver", "ServiceUnavailable")
_kubectl = partial(ask, "Kubernetes", _AWAY, "kubectl")


class KubernetesJobs(Scheduler):
    """The jobs of kubectl's context."""

    place: Kubernetes

    def find(self) -> str | None:
        return self.job.name if self.look(self.job.name).phase != "ended" else None

    def submit(self) -> str:
        """Create the job, in the place of one of its name that has ended, and return its name."""
        _kubectl("delete", "job", self.job.name, "--ignore-not-found")
        _kubectl("apply", "--filename", "-", text=self.manifest())
        return self.job.name

    def manifest(self) -> str:
        """Return the service and the job. A patch changes the job as `kubectl patch` does: it merges lists such as `env` by name."""
        folder, place = Path.cwd(), self.place
        if not folder.is_relative_to(place.mount):
            raise configuration_error(f"machine.places: mount: {folder} is not in {place.mount}, where the claim is mounted")
        text = self.render("kubernetes-job.yaml", retries=RETRIES)
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
        ready, nodes = status.get("ready", 0), self.place.nodes
        return Seen("running") if ready == nodes else Seen("waiting", f"{ready} of {nodes} pods are ready")

    def stop(self, number: str) -> None:
        """Delete the job, which stays until its pods have ended."""
        _kubectl("delete", "job", number, "--ignore-not-found", "--cascade=foreground", "--wait=false")


@reports_errors
def main(stage: str, log: str) -> int:
    """Run a stage in a pod, whose output goes to the pod's log and to the file that the submitting process follows."""
    stop_on_signals()
    node = os.environ["TRANSFORMER_NODE_RANK"]
    return run_as_node(stage, Path(), Path(log), partial(echo, stream=sys.stdout), "" if node == "0" else f"{node}: ")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
