"""Read-only checks of this machine and repository."""

import base64
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from transformer_core.config import PARAMS_FILE, Machine, load_params, tracking_uri
from transformer_core.errors import ExitCode, UserError, without_logins
from transformer_core.files import read_json
from transformer_core.presets import resolve

_GIB = 2**30
_DISK_GIB = 5  # CUDA's libraries, a corpus in four forms and some checkpoints; the default recipe needs less than 1.
_TIMEOUT_SECONDS = 3


@dataclass(frozen=True)
class Finding:
    """Result of a check. A run works in spite of a warning; a problem stops it with `exit_code`."""

    name: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""
    exit_code: ExitCode = ExitCode.DONE


def examine(root: Path = Path()) -> list[Finding]:
    """Check the machine and the repository at `root`. It takes a few seconds, mainly to import torch."""
    params, machine = _params(root)
    python = Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    services = [_service("mlflow", tracking_uri(machine)), _service("prefect", os.environ.get("PREFECT_API_URL", ""))]
    return [python, *_torch(), _disk(root), _repository(root), params, *services]


def _params(root: Path) -> tuple[Finding, Machine]:
    """Return the finding about params.yaml, and its section `machine` (the defaults if the file is invalid)."""
    try:
        params = load_params(root / PARAMS_FILE)
        resolve(params.model)
    except UserError as error:
        return Finding("params", "problem", error.message.rstrip("."), error.remedy, error.exit_code), Machine()
    detail = f"{root / PARAMS_FILE}: corpus {params.download.corpus}, preset {params.model.preset}"
    return Finding("params", "ok", detail), params.machine


def _torch() -> Iterator[Finding]:
    try:
        import torch

        from transformer_core.models.precision import AMPERE, can_compile
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        yield Finding("torch", "problem", f"cannot be loaded ({reason})", "Install again: make install", ExitCode.UNAVAILABLE)
        return
    yield Finding("torch", "ok", torch.__version__)
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield Finding("cuda", "ok", ", ".join(f"{gpu.name} {gpu.total_memory / _GIB:.0f} GiB" for gpu in gpus))
        if not can_compile(torch.device("cuda", 0)):
            remedy = "" if torch.cuda.get_device_capability(0) < AMPERE else "Install gcc and python3-dev."  # Triton needs Ampere.
            yield Finding("compiler", "warning", "kernels are not compiled: training is slower", remedy)
    elif shutil.which("nvidia-smi") or torch.cuda.device_count():  # The count needs no working CUDA.
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        remedy = "Look at the output of nvidia-smi and install the torch that fits the driver, or use the CPU."
        yield Finding("cuda", "warning", f"there is an NVIDIA driver, but torch (built {built}) sees no GPU", remedy)
    else:
        yield Finding("cuda", "ok", "no GPU: training runs on the CPU")


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    if free >= _DISK_GIB * _GIB:
        return Finding("disk", "ok", f"{free / _GIB:.1f} GiB free")
    remedy = "Free some space; `dvc gc --workspace` removes results that no stage here refers to."
    return Finding("disk", "warning", f"{free / _GIB:.1f} GiB free", remedy)


def _repository(root: Path) -> Finding:
    def problem(detail: str, remedy: str, code: ExitCode = ExitCode.BAD_CONFIGURATION) -> Finding:
        return Finding("repository", "problem", detail, remedy, code)

    if shutil.which("git") is None:
        return problem("git is not installed", "Install git: DVC needs it.")
    asked = subprocess.run(["git", "rev-parse", "--git-dir"], cwd=root, capture_output=True, text=True, check=False)
    if asked.returncode:
        answer = asked.stderr.split("\n")[0].removeprefix("fatal: ")
        return problem(f"git: {answer}", "Go to your clone of the repository, or: git init")
    for name in (".dvc", "dvc.yaml"):
        if not (root / name).exists():
            return problem(f"no {name} here", "Go to the top of the repository, or: transformer-core new .")
    if damaged := _damaged_by_a_kill(root):
        return problem(f"{damaged}: damaged, no DVC command can run", f"If no DVC command is running: rm {damaged}", ExitCode.BAD_DATA)
    return Finding("repository", "ok", "git and DVC are set up")


def _damaged_by_a_kill(root: Path) -> Path | None:
    """Return a file that DVC writes in place and a kill left damaged: its record of running commands, or an empty dvc.lock."""
    running, lock = root / ".dvc" / "tmp" / "rwlock", root / "dvc.lock"
    try:
        with suppress(FileNotFoundError):
            read_json(running)
    except UserError:
        return running
    return lock if lock.is_file() and not lock.stat().st_size else None


def _service(name: str, address: str) -> Finding:
    """Return whether the server at an address answers; anything but http(s) is no server."""
    shown = without_logins(address)
    if re.match(r"[\w.-]+:\d", address):
        return Finding(name, "problem", f"{shown}: not an address", f"Write http://{shown}", ExitCode.BAD_CONFIGURATION)
    if not address.startswith(("http://", "https://")):
        return Finding(name, "ok", shown or "no address in the environment: a temporary server, or that of its own settings")
    request = urllib.request.Request(f"{shown.rstrip('/')}/health")
    try:
        parts = urlsplit(address)
        if parts.username is not None:  # urllib would take it for a part of the host.
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS).close()
    except (OSError, ValueError, HTTPException) as error:  # An answer such as 401 is an OSError.
        remedy = "Start it, or correct its address or login. Training runs without MLflow; only stage publish needs it."
        return Finding(name, "problem", f"{shown}: {error}", remedy, ExitCode.UNAVAILABLE)
    return Finding(name, "ok", f"{shown} answers")
