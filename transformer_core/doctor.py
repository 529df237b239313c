"""Checks of this machine, the repository and the services that it names. They write nothing but small files, which they remove."""

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired, run
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import psutil
import requests

from transformer_core.config import PARAMS_FILE, load_params
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line, machine_errors, without_logins
from transformer_core.files import is_locked, locked
from transformer_core.places import Slurm
from transformer_core.project import check_repository

_DISK_GIB = 5  # CUDA's libraries, a corpus in four forms and some checkpoints; the default recipe needs less than 1.
Warned = tuple[str, str]  # What is found, and the remedy.
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}
# A process of its own, in the package that knows DVC and MLflow.
_PROBE = (sys.executable, "-m", "flows.probes")
_LOGIN = (requests.codes.unauthorized, requests.codes.forbidden)


class Finding(NamedTuple):
    """Result of a check. A run works in spite of a warning; a problem stops it with `exit_code`."""

    name: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""
    exit_code: ExitCode = ExitCode.DONE


def examine(root: Path = Path(), cluster: bool = False) -> Iterator[Finding]:
    """Check the machine and the repository at `root`, and what a cluster needs. It takes seconds, mainly to import torch and DVC."""
    for name, check in {**_CHECKS, **(_CLUSTER_CHECKS if cluster else {})}.items():
        try:
            with machine_errors(name, ""):
                found = check(root)
            yield Finding(name, "ok", found) if isinstance(found, str) else Finding(name, "warning", *found)
        except UserError as error:
            yield Finding(name, "problem", error.message.rstrip("."), error.remedy, error.exit_code)
        except (ImportError, OSError) as error:
            yield Finding(name, "problem", f"cannot be loaded ({first_line(error)})", "Install again: make install", ExitCode.UNAVAILABLE)


def _check_cuda(_: Path) -> str | Warned:
    import torch

    from transformer_core.models.precision import can_compile, from_ampere

    count = torch.cuda.device_count()  # It needs no working CUDA.
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
        names = ", ".join(f"{gpu.name} {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus)
        if can_compile(first := torch.device("cuda", 0)):
            return names
        remedy = "Install gcc and python3-dev." if from_ampere(first) else ""
        return f"{names}: kernels are not compiled: training is slower", remedy
    if shutil.which("nvidia-smi") or count:
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        remedy = "Look at the output of nvidia-smi and install the torch that fits the driver, or use the CPU."
        return f"there is an NVIDIA driver, but torch (built {built}) sees no GPU", remedy
    return "no GPU: training runs on the CPU"


def _check_disk(root: Path) -> str | Warned:
    free = shutil.disk_usage(root).free / 2**30
    found = f"{free:.1f} GiB free"
    return found if free >= _DISK_GIB else (found, "Free some space; `dvc gc --workspace` removes results that no stage here refers to.")


def _check_params(root: Path) -> str:
    params = load_params(root / PARAMS_FILE)
    return f"{root / PARAMS_FILE}: corpus {params.download.corpus}, preset {params.model.preset}"


def _check_state(root: Path) -> str | Warned:
    """Return where states are. Raises `UserError` (78): it locks no files, or its locks do not exclude."""
    from transformer_core.training.checkpoint import state_root

    folder = state_root(root)
    probe = folder / f".doctor-{uuid4().hex[:8]}"
    with locked(probe, "doctor"):
        holds = is_locked(probe)
        probe.unlink()
    if not holds:
        raise configuration_error(f"{folder}: a lock does not exclude others", "Use a file system with locks.")
    if local := _mount_of(folder)[1] & _LOCAL_LOCKS:
        remedy = "Mount it without this option: two machines could train the same."
        return f"{folder}: mounted with {', '.join(local)}: locks hold on this machine only", remedy
    return f"{folder} locks files"


def _mount_of(path: Path) -> tuple[str, set[str]]:
    """Return the type and the options of the file system of a path, as far as the system tells."""
    at = [mount for mount in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(mount.mountpoint)]
    nearest = max(at, key=lambda mount: len(mount.mountpoint), default=None)
    return (nearest.fstype, set(nearest.opts.split(","))) if nearest else ("", set())


def _check_dvc(root: Path) -> str:
    """Return that the DVC remote works. Raises `UserError` (69): no object could be written, listed, read and removed."""
    if not any("remote" in file.read_text(encoding="utf-8", errors="replace") for file in root.glob(".dvc/config*")):
        return "no remote: results stay on this machine"
    _run([*_PROBE, "dvc", f"doctor-{uuid4().hex[:8]}"], root, "dvc remote list; dvc remote modify --local NAME ...")
    return "the remote can be listed, written and read"


def _check_mlflow(root: Path) -> str | Warned:
    address = _mlflow_address(root)
    if (not address or address.startswith("sqlite:///")) and _mount_of(root / address.removeprefix("sqlite:///"))[0].startswith("nfs"):
        remedy = "SQLite's locks fail there now and then: use an MLflow server, or a database on a local disk (machine.tracking_uri)."
        return "the database is on NFS", remedy
    login = (os.environ.get("MLFLOW_TRACKING_USERNAME", ""), os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    token = "" if any(login) else os.environ.get("MLFLOW_TRACKING_TOKEN")
    request: dict[str, Any] = {"auth": login if any(login) else None, "headers": {"Authorization": f"Bearer {token}"} if token else None}
    remedy = "Set MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN. Training runs without MLflow; only stage publish needs it."
    return _ask(address, "/api/2.0/mlflow/experiments/search", remedy, params={"max_results": 1}, **request)


def _mlflow_address(root: Path) -> str:
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    with suppress(UserError):
        address = load_params(root / PARAMS_FILE).machine.tracking_uri or address
    return address


def _check_prefect(_: Path) -> str:
    login, _separator, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    key = os.environ.get("PREFECT_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    remedy = "Set PREFECT_API_AUTH_STRING to USER:PASSWORD, or PREFECT_API_KEY."
    address = os.environ.get("PREFECT_API_URL", "")
    return _ask(address, "/flows/count", remedy, "POST", json={}, headers=headers, auth=(login, password) if login else None)


def _ask(address: str, path: str, login_remedy: str, method: str = "GET", **request: Any) -> str:
    """Return that the server at an address answers a request that needs a login; anything but http(s) is no server.

    Raises `UserError`: 69, it does not answer; 78, it refuses the login.
    """
    shown = without_logins(address)
    if re.match(r"[\w.-]+:\d", address):
        raise configuration_error(f"{shown}: not an address", f"Write http://{shown}")
    if not address.startswith(("http://", "https://")):
        return shown or "no address in the environment: a server or file of its own settings"
    try:
        response = requests.request(method, address.rstrip("/") + path, timeout=3, **request)
        if response.status_code in _LOGIN:
            raise configuration_error(f"{shown}: the login is missing or wrong ({response.status_code})", login_remedy)
        response.raise_for_status()
    except requests.RequestException as error:
        words = "no connection" if type(error) is requests.ConnectionError else first_line(error)
        raise UserError(f"{shown}: {words}", "Start it, or correct its address.", ExitCode.UNAVAILABLE) from None
    return f"{shown} answers"


def _check_artifact(root: Path) -> str:
    """Return that MLflow's server stores artifacts. Raises `UserError` (69): it does not."""
    address = _mlflow_address(root)
    if not address.startswith(("http://", "https://")):
        return "no server of MLflow: artifacts are files here"
    _run([*_PROBE, "mlflow", address], root, "Look into the server's log: it may lack boto3 or the store's address.")
    return "the server stores artifacts"


def _check_heartbeat(root: Path) -> str:
    """Return that a run of a lost machine is ended. Raises `UserError` (69): it would be Running for ever."""
    address = os.environ.get("PREFECT_API_URL", "")
    if not address.startswith(("http://", "https://")):
        return "no server of Prefect"
    _run([*_PROBE, "prefect", address], root, "prefect automation create --from-file flows/places/templates/automations.yaml")
    return "runs of lost machines are ended"


def _check_slurm(root: Path) -> str:
    places = [place for place in load_params(root / PARAMS_FILE).machine.places.values() if isinstance(place, Slurm)]
    options = [[f"--{option}={value}" for option, value in place.sbatch_options.items()] for place in places]
    commands = [["sbatch", "--test-only", *of_place, "--wrap=true"] for of_place in options]
    return "; ".join(_run(command, root, f"Try it: {shlex.join(command)}") for command in commands) or "no place on Slurm"


def _run(command: Sequence[str], root: Path, remedy: str) -> str:
    """Return the last line of a command's output. Raises `UserError` (69): it failed."""
    environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    try:
        done = run(command, cwd=root, env=environment, stdout=PIPE, stderr=STDOUT, text=True, timeout=60, check=False)
    except (OSError, TimeoutExpired) as error:
        raise UserError(first_line(error), remedy, ExitCode.UNAVAILABLE) from None
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode:
        raise UserError(last, remedy, ExitCode.UNAVAILABLE)
    return last


# Each returns what is well, or a warning; a problem is raised.
_CHECKS: dict[str, Callable[[Path], str | Warned]] = {
    "python": lambda _: f"{platform.python_version()}, {sys.executable}",
    "torch": lambda _: str(import_module("torch").__version__),
    "cuda": _check_cuda,
    "disk": _check_disk,
    "repository": check_repository,
    "params": _check_params,
    "state": _check_state,
    "dvc": _check_dvc,
    "mlflow": _check_mlflow,
    "prefect": _check_prefect,
}
_CLUSTER_CHECKS = {"artifacts": _check_artifact, "heartbeat": _check_heartbeat, "slurm": _check_slurm}
