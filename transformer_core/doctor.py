"""What this machine and repository have, and what stands in the way of a run. Looks only; changes nothing."""

import os
import platform
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformer_core.config import PARAMS_FILE, Machine, Params, load_params, tracking_uri
from transformer_core.errors import ExitCode, UserError
from transformer_core.presets import resolve
from transformer_core.processes import cores

_GIB = 2**30
_DISK_GIB = 5  # CUDA's libraries, a corpus in four forms and some checkpoints; the default recipe takes under 1.
_MEMORY_GIB = 2  # What the default recipe's training and an MLflow client take together, with room.
_TIMEOUT_SECONDS = 3


@dataclass(frozen=True)
class Finding:
    """One checked thing: a warning costs something, a problem stops a run with `exit_code`."""

    name: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""
    exit_code: ExitCode = ExitCode.DONE


def examine(root: Path = Path()) -> list[Finding]:
    """Check the machine and the repository at `root`; a few seconds, most of them importing torch."""
    params = _load(root)
    findings = [_python(), *_torch(), _cores(), _memory(), _disk(root), _repository(root)]
    if isinstance(params, UserError):
        findings.append(Finding("params", "problem", params.message.rstrip("."), params.remedy, params.exit_code))
    else:
        findings.append(Finding("params", "ok", f"{root / PARAMS_FILE}: corpus {params.download.corpus}, preset {params.model.preset}"))
    machine = Machine() if isinstance(params, UserError) else params.machine
    return [*findings, _mlflow(tracking_uri(machine), root), _prefect()]


def _load(root: Path) -> Params | UserError:
    try:
        params = load_params(root / PARAMS_FILE)
        resolve(params.model)
        return params
    except UserError as error:
        return error


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")


def _torch() -> Iterator[Finding]:
    try:
        import torch

        from transformer_core.models.precision import has_fast_bf16
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        yield Finding("torch", "problem", f"cannot be loaded ({reason})", "Install again: make install", ExitCode.UNAVAILABLE)
        return
    yield Finding("torch", "ok", torch.__version__)
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    if gpus:
        yield Finding("cuda", "ok", ", ".join(f"{gpu.name} {gpu.total_memory / _GIB:.0f} GiB" for gpu in gpus))
    elif shutil.which("nvidia-smi"):
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        remedy = "See what nvidia-smi says and install the torch that fits the driver, or go on with the CPU."
        yield Finding("cuda", "warning", f"there is an NVIDIA driver, but torch (built {built}) sees no GPU", remedy)
    else:
        yield Finding("cuda", "ok", "no GPU: training runs on the CPU")
    device = torch.device("cuda" if gpus else "cpu")
    if has_fast_bf16(device):
        yield Finding("precision", "ok", f"train.precision auto takes bf16: this {device.type} multiplies it in hardware")
    else:
        yield Finding("precision", "ok", f"train.precision auto takes float32: this {device.type} has no fast bf16")


def _cores() -> Finding:
    usable, present = cores(), os.cpu_count()
    return Finding("threads", "ok", f"{usable} of {present} cores usable; machine.threads sets how many a process takes")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < _MEMORY_GIB * _GIB:
        return Finding("memory", "warning", detail, "Lower train.tokens_per_microbatch or end other programs.")
    return Finding("memory", "ok", detail)


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    detail = f"{free / _GIB:.1f} GiB free"
    if free < _DISK_GIB * _GIB:
        return Finding("disk", "warning", detail, "Make room; `dvc gc --workspace` removes results that no stage here refers to.")
    return Finding("disk", "ok", detail)


def _repository(root: Path) -> Finding:
    def problem(detail: str, remedy: str) -> Finding:
        return Finding("repository", "problem", detail, remedy, ExitCode.BAD_CONFIGURATION)

    if shutil.which("git") is None:
        return problem("git is not installed", "Install git: DVC asks it what belongs to a version.")
    asked = subprocess.run(["git", "rev-parse", "--git-dir"], cwd=root, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.split("\n")[0].removeprefix("fatal: ")
        return problem(f"git says: {said}", "Go to your clone of the repository, or: git init")
    if not (root / ".dvc").is_dir():
        return problem("no .dvc folder here", "Go to the top of the repository, or: transformer-core new .")
    if not (root / "dvc.yaml").is_file():
        return problem("no dvc.yaml here", "Go to the top of the repository, or: transformer-core new .")
    return Finding("repository", "ok", "git and DVC are set up")


def _mlflow(uri: str, root: Path) -> Finding:
    if uri.startswith(("http://", "https://")):
        remedy = "Training goes on without it and its record waits in .state/journal; only the stage publish needs it."
        return _service("mlflow", uri, f"{uri.rstrip('/')}/health", remedy)
    if uri.startswith("sqlite:///"):
        folder = (root / uri.removeprefix("sqlite:///")).parent
        if not os.access(folder, os.W_OK):
            remedy = "Make it writable or set machine.tracking_uri to another."
            return Finding("mlflow", "problem", f"{uri}: no folder that can be written to", remedy, ExitCode.UNAVAILABLE)
    return Finding("mlflow", "ok", uri)


def _prefect() -> Finding:
    api = os.environ.get("PREFECT_API_URL") or _prefect_profile().get("PREFECT_API_URL")
    if not api:
        return Finding("prefect", "ok", "none configured: a temporary server is used")
    remedy = "Start it with: prefect server start, or unset PREFECT_API_URL for a temporary server."
    return _service("prefect", api, f"{api.rstrip('/')}/health", remedy)


def _prefect_profile() -> dict[str, Any]:
    """Settings of Prefect's active profile, read as Prefect reads them, which this package must not import."""
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
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
        if error.code not in (401, 403):  # It is there, and wants to know who asks, which its client will tell it.
            return Finding(name, "problem", f"{shown}: answers {error.code} {error.reason}", remedy, ExitCode.UNAVAILABLE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return Finding(name, "problem", f"{shown}: not reachable ({reason})", remedy, ExitCode.UNAVAILABLE)
    return Finding(name, "ok", f"{shown} answers")
