"""Read-only checks of this machine and repository."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import requests

from transformer_core.config import PARAMS_FILE, load_params
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line, without_logins
from transformer_core.project import check_repository

_DISK_GIB = 5  # CUDA's libraries, a corpus in four forms and some checkpoints; the default recipe needs less than 1.


@dataclass(frozen=True)
class Finding:
    """Result of a check. A run works in spite of a warning; a problem stops it with `exit_code`."""

    name: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""
    exit_code: ExitCode = ExitCode.DONE


def examine(root: Path = Path()) -> Iterator[Finding]:
    """Check the machine and the repository at `root`. It takes a few seconds, mainly to import torch."""
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield from _torch()
    free = shutil.disk_usage(root).free / 2**30
    remedy = "Free some space; `dvc gc --workspace` removes results that no stage here refers to." if free < _DISK_GIB else ""
    yield Finding("disk", "warning" if remedy else "ok", f"{free:.1f} GiB free", remedy)
    yield _finding("repository", lambda: check_repository(root))
    yield _finding("params", lambda: _check_params(root))
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    with suppress(UserError):
        address = load_params(root / PARAMS_FILE).machine.tracking_uri or address
    yield _finding("mlflow", lambda: _check_service(address))
    yield _finding("prefect", lambda: _check_service(os.environ.get("PREFECT_API_URL", "")))


def _finding(name: str, check: Callable[[], str]) -> Finding:
    """Return the result of a check, which returns the detail or raises a `UserError`."""
    try:
        return Finding(name, "ok", check())
    except UserError as error:
        return Finding(name, "problem", error.message.rstrip("."), error.remedy, error.exit_code)


def _torch() -> Iterator[Finding]:
    try:
        import torch

        from transformer_core.models.precision import AMPERE, can_compile
    except (ImportError, OSError) as error:
        yield Finding("torch", "problem", f"cannot be loaded ({first_line(error)})", "Install again: make install", ExitCode.UNAVAILABLE)
        return
    yield Finding("torch", "ok", torch.__version__)
    count = torch.cuda.device_count()  # It needs no working CUDA.
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
        yield Finding("cuda", "ok", ", ".join(f"{gpu.name} {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus))
        if not can_compile(torch.device("cuda", 0)):
            remedy = "" if torch.cuda.get_device_capability(0) < AMPERE else "Install gcc and python3-dev."  # Triton needs Ampere.
            yield Finding("compiler", "warning", "kernels are not compiled: training is slower", remedy)
    elif shutil.which("nvidia-smi") or count:
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        remedy = "Look at the output of nvidia-smi and install the torch that fits the driver, or use the CPU."
        yield Finding("cuda", "warning", f"there is an NVIDIA driver, but torch (built {built}) sees no GPU", remedy)
    else:
        yield Finding("cuda", "ok", "no GPU: training runs on the CPU")


def _check_params(root: Path) -> str:
    params = load_params(root / PARAMS_FILE)
    return f"{root / PARAMS_FILE}: corpus {params.download.corpus}, preset {params.model.preset}"


def _check_service(address: str) -> str:
    """Return that the server at an address answers; anything but http(s) is no server. Raises `UserError`: it does not."""
    shown = without_logins(address)
    if re.match(r"[\w.-]+:\d", address):
        raise configuration_error(f"{shown}: not an address", f"Write http://{shown}")
    if not address.startswith(("http://", "https://")):
        return shown or "no address in the environment: a server or file of its own settings"
    try:
        requests.get(f"{address.rstrip('/')}/health", timeout=3).raise_for_status()
    except requests.RequestException as error:
        words = "no connection" if type(error) is requests.ConnectionError else first_line(error)
        remedy = "Start it, or correct its address or login. Training runs without MLflow; only stage publish needs it."
        raise UserError(f"{shown}: {words}", remedy, ExitCode.UNAVAILABLE) from None
    return f"{shown} answers"
