"""Training over several machines without Prefect: a Slurm or Kubernetes job in which each node runs flows/cluster/node.py.

    python -m flows.submit slurm --nodes 2 --gpus 8 --time 24:00:00 [--dry-run]
    python -m flows.submit kubernetes --image REGISTRY/transformer-pipeline --nodes 2 --gpus 8 [--patch patch.yaml] [--dry-run]

The name of a Kubernetes job ends with a hash of commit, settings and options, since Kubernetes cannot change a job: the same submission
finds the present job, a different one creates another.

The inputs of the stage are pushed first; after the job, `python -m flows.process.repro restore train` fetches the training.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from flows.cluster.node import check_pushed, committed, exchange
from flows.process.child import StageLog
from flows.process.repro import ancestors
from flows.process.runner import reports_errors
from flows.process.settings import own_settings
from transformer_core.cli.arguments import Parser, kubernetes_name, non_negative_int, positive_int, slurm_name, slurm_time, slurm_value
from transformer_core.errors import ExitCode, UserError, configuration_error, without_logins

STAGE = "train"
TEMPLATES = {"slurm": "slurm.sbatch", "kubernetes": "kubernetes-job.yaml"}
SUBMITTED_BY = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "apply", "--filename", "-"]}
RENDEZVOUS_PORT = 29400
# Time for the save and for Python, DVC and torchrun to end.
GRACE = 240
STATE_REMEDY = "Set it to a folder of storage that all nodes share, before sbatch."
# A training that is requeued again and again without progress must end some day.
MOST_REQUEUES = 100


def render(kind: str, values: dict[str, Any]) -> str:
    """Return the job in its scheduler's format; a missing value is an error."""
    text = resources.files("flows.cluster").joinpath("templates", TEMPLATES[kind]).read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
    environment.filters |= {"shell": shlex.quote, "json": json.dumps}
    return environment.from_string(text).render(values)


def render_kubernetes(values: dict[str, Any], patch: Path | None) -> str:
    """Return the service and the job. A patch changes the job as `kubectl patch` does: it merges lists such as `env` by name.

    Raises `UserError`: 69, kubectl is not installed; 78, it cannot apply the patch.
    """
    text = render("kubernetes", values)
    if patch is None:
        return text
    service, separator, job = text.rpartition("---\n")
    if shutil.which("kubectl") is None:
        raise UserError("kubectl: not found on this machine", "--patch needs it, even with --dry-run.", ExitCode.UNAVAILABLE)
    command = ["kubectl", "patch", "--local", "--type", "strategic", "--patch-file", str(patch), "--filename", "-", "--output", "yaml"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise configuration_error(f"{patch}: {reason}", "It must be a patch of the Job, as in docs/cluster.md.")
    return service + separator + done.stdout


def submit(kind: str, job: str) -> None:
    """Pass a job to its scheduler, whose answer goes to the terminal.

    Raises `UserError` (69): the scheduler's command is not installed, or refuses.
    """
    command = SUBMITTED_BY[kind]
    if shutil.which(command[0]) is None:
        raise UserError(
            f"{command[0]}: not found on this machine", "Submit from one that has it, or look with --dry-run.", ExitCode.UNAVAILABLE
        )
    if subprocess.run(command, input=job, text=True, check=False).returncode:
        raise UserError(f"{command[0]} refused the job", "Its reason is above.", ExitCode.UNAVAILABLE)


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Train the pipeline of this repository on the nodes of a cluster, from the state saved there if there is one."""
    options = vars(_parser().parse_args(arguments))
    kind, dry_run = options.pop("kind"), options.pop("dry_run")
    repository, commit = committed()
    check_pushed(repository, commit)
    repository = options.pop("repository") or without_logins(repository)
    if kind == "kubernetes" and Path(repository).exists():
        raise configuration_error(
            f"{repository}: a folder of this machine, which no pod can read", "Give an address that pods can read: --repository URL"
        )
    values = {
        **options,
        "repository": repository,
        "commit": commit,
        "settings": json.dumps(own_settings()),
        "stage": STAGE,
        "port": RENDEZVOUS_PORT,
        "grace": GRACE,
        "most_requeues": MOST_REQUEUES,
        "state_remedy": STATE_REMEDY,
        "python": sys.executable,
    }
    if kind == "kubernetes":
        patch = values.pop("patch")
        values["name"] += f"-{sha256(render_kubernetes(values, patch).encode()).hexdigest()[:8]}"
        job = render_kubernetes(values, patch)
    else:
        job = render(kind, values)
    if dry_run:
        print(job, end="")
        return ExitCode.DONE
    if kind == "slurm" and not Path(os.environ.get("TRANSFORMER_STATE", "")).is_absolute():
        raise configuration_error("TRANSFORMER_STATE is not set to a full path", STATE_REMEDY)
    log = StageLog(lambda line: print(line, file=sys.stderr))
    exchange("push", ancestors(STAGE), Path(), log)
    submit(kind, job)
    return ExitCode.DONE


def _text(path: str) -> str:
    """Return the text of a file, as the type of an argument."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None


def _parser() -> Parser:
    parser = Parser(prog="python -m flows.submit", description=main.__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    slurm = kinds.add_parser("slurm", help="submit by sbatch; the project must be installed at the same path on every node")
    limit = "time limit; two minutes before it the training saves and is queued again"
    slurm.add_argument("--time", type=slurm_time, required=True, metavar="HH:MM:SS", help=limit)
    for name in ("--partition", "--account", "--qos"):
        slurm.add_argument(name, type=slurm_value, metavar="NAME")
    slurm.add_argument(
        "--mem", type=slurm_value, default="0", metavar="SIZE", help="memory of each node, such as 200G (default: 0, all of it)"
    )
    prelude = "shell commands that each node runs first: modules, variables, a container"
    slurm.add_argument("--prelude", type=_text, metavar="FILE", help=prelude)
    kubernetes = kinds.add_parser("kubernetes", help="submit by kubectl: an Indexed Job, and the service by which its pods find node 0")
    kubernetes.add_argument("--image", required=True, help="image built from the Dockerfile")
    kubernetes.add_argument(
        "--state-claim", default="transformer-state", metavar="NAME", help="persistent volume claim (ReadWriteMany) for states"
    )
    kubernetes.add_argument(
        "--secret", default="transformer-pipeline", metavar="NAME", help="secret whose keys become environment variables"
    )
    kubernetes.add_argument("--namespace", metavar="NAME", help="namespace of the job and its service (default: that of kubectl's context)")
    kubernetes.add_argument("--patch", type=Path, metavar="FILE", help="fields to merge into the job, in the format of kubectl patch")
    for job, name_type in ((slurm, slurm_name), (kubernetes, kubernetes_name)):
        job.add_argument("--nodes", type=positive_int, default=1)
        job.add_argument("--gpus", type=non_negative_int, default=0, metavar="N", help="GPUs of each node (default: 0, train on CPUs)")
        job.add_argument("--name", type=name_type, default="transformer-train", help="name of the job")
        job.add_argument("--repository", metavar="URL", help="repository that nodes clone (default: this repository's first git remote)")
        job.add_argument("--dry-run", action="store_true", help="print the job without submitting it")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
