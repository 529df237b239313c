"""Read-only checks of this machine and repository."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

from transformer_core.config import PARAMS_FILE, SQLITE, Machine, load_params, tracking_uri
from transformer_core.errors import ExitCode, UserError, without_logins
from transformer_core.files import expanded, read_json
from transformer_core.presets import resolve
from transformer_core.processes import cores

_GIB = 2**30
_DISK_GIB = 5  # CUDA's libraries, a corpus in four forms and some checkpoints; the default recipe needs less than 1.
_MEMORY_GIB = 2  # The default recipe's training and an MLflow client, with a margin.
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
    room = [_memory(), _disk(root)]
    return [python, *_torch(), _cores(), *room, _repository(root), params, _mlflow(tracking_uri(machine), root), _prefect()]


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

        from transformer_core.models.precision import AMPERE, can_compile, has_fast_bf16
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        yield Finding("torch", "problem", f"cannot be loaded ({reason})", "Install again: make install", ExitCode.UNAVAILABLE)
        return
    yield Finding("torch", "ok", torch.__version__)
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0  # The count alone needs no working CUDA.
    gpus = [torch.cuda.get_device_properties(index) for index in range(usable)]
    if gpus:
        yield Finding("cuda", "ok", ", ".join(f"{gpu.name} {gpu.total_memory / _GIB:.0f} GiB" for gpu in gpus))
        if torch.cuda.get_device_capability(0) < AMPERE:
            yield Finding("compiler", "warning", "no kernels are compiled for a GPU before Ampere: training is slower")
        elif not can_compile(torch.device("cuda", 0)):
            yield Finding(
                "compiler", "warning", "no C compiler, headers of Python or Triton: training is slower", "Install gcc and python3-dev."
            )
    elif shutil.which("nvidia-smi") or torch.cuda.device_count():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        remedy = "Look at the output of nvidia-smi and install the torch that fits the driver, or use the CPU."
        yield Finding("cuda", "warning", f"there is an NVIDIA driver, but torch (built {built}) sees no GPU", remedy)
    else:
        yield Finding("cuda", "ok", "no GPU: training runs on the CPU")
    device = torch.device("cuda" if gpus else "cpu")
    other = "fp16" if gpus else "float32"
    chosen = "bf16: this {} multiplies it in hardware" if has_fast_bf16(device) else f"{other}: this {{}} has no fast bf16"
    yield Finding("precision", "ok", f"train.precision auto is {chosen.format(device.type)}")


def _cores() -> Finding:
    usable, present = cores(), os.cpu_count()
    return Finding("threads", "ok", f"{usable} of {present} cores usable; machine.threads sets the number of a process")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    remedy = "Lower train.tokens_per_microbatch or close other programs."
    return _room("memory", memory.available, _MEMORY_GIB, detail, remedy)


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    remedy = "Free some space; `dvc gc --workspace` removes results that no stage here refers to."
    return _room("disk", free, _DISK_GIB, f"{free / _GIB:.1f} GiB free", remedy)


def _room(name: str, available: int, least_gib: int, detail: str, remedy: str) -> Finding:
    return Finding(name, "ok", detail) if available >= least_gib * _GIB else Finding(name, "warning", detail, remedy)


def _repository(root: Path) -> Finding:
    def problem(detail: str, remedy: str) -> Finding:
        return Finding("repository", "problem", detail, remedy, ExitCode.BAD_CONFIGURATION)

    if shutil.which("git") is None:
        return problem("git is not installed", "Install git: DVC needs it.")
    asked = subprocess.run(["git", "rev-parse", "--git-dir"], cwd=root, capture_output=True, text=True, check=False)
    if asked.returncode:
        answer = asked.stderr.split("\n")[0].removeprefix("fatal: ")
        return problem(f"git: {answer}", "Go to your clone of the repository, or: git init")
    if not (root / ".dvc").is_dir():
        return problem("no .dvc folder here", "Go to the top of the repository, or: transformer-core new .")
    if not (root / "dvc.yaml").is_file():
        return problem("no dvc.yaml here", "Go to the top of the repository, or: transformer-core new .")
    if damaged := _damaged_by_a_kill(root):
        remedy = f"If no DVC command is running: rm {damaged}"
        return Finding("repository", "problem", f"{damaged}: damaged, no DVC command can run", remedy, ExitCode.BAD_DATA)
    for key in ("user.name", "user.email"):
        if subprocess.run(["git", "config", "--get", key], cwd=root, capture_output=True, check=False).returncode:
            remedy = f'`dvc exp run` needs it: git config --global {key} "..."'
            return Finding("repository", "warning", f"git has no {key} for commits", remedy)
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


def _mlflow(uri: str, root: Path) -> Finding:
    uri = without_logins(uri)  # urllib would take a login for a part of the host. A server that asks for a login is running.
    if uri.startswith(("http://", "https://")):
        remedy = "Training runs without it and keeps its record in .state/journal; only the stage publish needs it."
        return _service("mlflow", uri, f"{uri.rstrip('/')}/health", remedy)
    if uri.startswith(SQLITE):
        folder = (root / uri.removeprefix(SQLITE)).parent
        if not os.access(folder, os.W_OK):
            remedy = "Make it writable or change machine.tracking_uri."
            return Finding("mlflow", "problem", f"{uri}: the folder is not writable", remedy, ExitCode.UNAVAILABLE)
    if re.match(r"[\w.-]+:\d", uri):
        return Finding("mlflow", "problem", f"{uri}: not an address", f"Write http://{uri}", ExitCode.BAD_CONFIGURATION)
    return Finding("mlflow", "ok", uri)


def _prefect() -> Finding:
    api = os.environ.get("PREFECT_API_URL") or _prefect_profile().get("PREFECT_API_URL")
    if not api:
        return Finding("prefect", "ok", "none configured: a temporary server is used")
    api = without_logins(api)
    remedy = "Start it with: prefect server start, or unset PREFECT_API_URL for a temporary server."
    return _service("prefect", api, f"{api.rstrip('/')}/health", remedy)


def _prefect_profile() -> dict[str, Any]:
    """Read the settings of Prefect's active profile from its file: this package must not import Prefect."""
    home = expanded(os.environ.get("PREFECT_HOME", "~/.prefect"))
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    profile: dict[str, Any] = document.get("profiles", {}).get(os.environ.get("PREFECT_PROFILE") or document.get("active"), {})
    return profile


def _service(name: str, shown: str, health: str, remedy: str) -> Finding:
    try:
        urllib.request.urlopen(health, timeout=_TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):  # These show a running server; its client will authenticate.
            return Finding(name, "problem", f"{shown}: answers {error.code} {error.reason}", remedy, ExitCode.UNAVAILABLE)
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return Finding(name, "problem", f"{shown}: not reachable ({reason})", remedy, ExitCode.UNAVAILABLE)
    return Finding(name, "ok", f"{shown} answers")
