"""Memory, file handles, threads and folders of long-lived processes: ``python benchmarks/soak.py training --hours 2``.

    python benchmarks/soak.py training --pid 1234
    python benchmarks/soak.py served --requests 100000
    python benchmarks/soak.py flows --runs 100
    python benchmarks/soak.py report soak-training.csv

- training: the process tree of a training, a running one by its PID or one that is started in the working directory.
- served: `mlflow models serve` of a tiny model, asked by several threads. A sentence that is sent again must get the same answer.
- flows: a Prefect server, and a worker that runs the deployment of prefect.yaml again and again; every tenth run has another seed.

Every few seconds a sample is appended to a CSV: of each process its memory (USS, what only this process uses), its file handles and
threads, and of each folder its size. The table has a row for each process that lived in at least half of the samples, and for each folder.
The first part of the time, the warm-up, is left out, and the rest is cut into blocks. A line is fitted to their medians.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import psutil
import requests
from common import STAGE_ENVIRONMENT, command_line, english_sentences, markdown, write_params
from scipy import stats

from flows.places.group import free_port
from flows.process.paths import PUBLISHED
from flows.process.runner import in_background
from transformer_core.files import read_json
from transformer_core.project import new_project

SECONDS_BETWEEN_SAMPLES = 5.0
START_SECONDS = 300.0  # After them a server that does not answer has failed to start.
# Share of the time that is left out of the fit: libraries are loaded, buffers grow to their size, caches are filled.
WARM_UP = 0.25
# Figures are medians of this many blocks: a validation is no leak, and single samples depend on their neighbours, which would make the
# interval of a fit to them too narrow.
BLOCKS = 20
LOOPBACK = "127.0.0.1"
REPEATED = 100  # Sentences that are sent again and again; half of all requests.
CLIENTS = 5
NEW_SEED_EVERY = 10  # Runs.
TINY: dict[str, dict[str, object]] = {
    "bpe": {"vocab_size": 500},
    "model": {"layers": 1, "d_model": 64, "d_ff": 128, "heads": 2},
    "train": {"updates": 100, "save_every": 50, "validate_every": 50, "bleu_sentences": 10, "warmup": 50},
    "average": {"count": 2},
    "decode": {"max_extra": 10},
    "machine": {"devices": 1, "threads": 1},
}


def levels(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the medians of `BLOCKS` blocks of one subject's samples after the warm-up, of fewer blocks if there are fewer samples."""
    seconds = samples["seconds"]
    kept = samples[seconds >= seconds.iloc[0] + WARM_UP * (seconds.iloc[-1] - seconds.iloc[0])]
    block = np.arange(len(kept)) * min(BLOCKS, len(kept)) // len(kept)
    return kept.groupby(block)[["seconds", "megabytes", "handles", "threads"]].median()


def slope(levels: pd.DataFrame) -> tuple[float, float]:
    """Return the megabytes an hour of a line through at least three blocks, and half of its 95% interval."""
    line = stats.linregress(levels["seconds"] / 3600, levels["megabytes"])
    return line.slope, stats.t.ppf(0.975, len(levels) - 2) * np.nan_to_num(line.stderr)  # NaN if nothing changes.


def table(samples: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each folder, which has no handles and threads, and each process that lived in at least half of the samples."""
    most = samples.groupby("subject").size().max()
    rows = []
    for subject, own in samples.groupby("subject", sort=False):
        if len(own) < most / 2:
            continue
        found = levels(own)
        first, last = found.iloc[0], found.iloc[-1]
        row = {"process or folder": subject, "hours": f"{np.ptp(own['seconds']) / 3600:.2f}"}
        for column, form in (("megabytes", ",.1f"), ("handles", ".0f"), ("threads", ".0f")):
            row[column] = f"{first[column]:{form}} to {last[column]:{form}}".replace("nan to nan", "")
        line = "{:+.2f} ± {:.2f}".format(*slope(found)) if len(found) > 2 else "too few samples"
        rows.append({**row, "megabytes an hour, 95%": line})
    return pd.DataFrame(rows)


def sample(roots: Sequence[psutil.Process], folders: Mapping[str, Path], seconds: float) -> pd.DataFrame:
    """Return a row for each process of the trees below roots, and for each folder, at a time in seconds."""
    rows: list[tuple[str, float, float, float]] = []
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():  # It may end meanwhile.
                    counts = process.memory_full_info().uss / 1e6, process.num_fds(), process.num_threads()
                    if command := process.cmdline():  # A zombie has none.
                        rows.append((f"{program(command)} {process.pid}", *counts))
    rows += [(name, size_bytes(folder) / 1e6, np.nan, np.nan) for name, folder in folders.items()]
    found = pd.DataFrame(rows, columns=["subject", "megabytes", "handles", "threads"])
    found.insert(0, "seconds", seconds)
    return found


def program(command: Sequence[str]) -> str:
    """Return the name of what a command runs: a module of Python, a script or a program, and its first argument if that is a word."""
    words = [Path(word).name for word in command if not word.startswith("-")]
    if words[0].startswith("python"):
        words = words[1:] or words
    return " ".join(word for number, word in enumerate(words[:2]) if number == 0 or word.isalpha())


def size_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; files may vanish meanwhile."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += (Path(parent) / file).lstat().st_size
    return total


@contextmanager
def watched(csv: Path, roots: Sequence[psutil.Process], folders: Mapping[str, Path]) -> Iterator[None]:
    """Write samples to a CSV during the block."""
    began = time.monotonic()
    sample(roots, folders, 0.0).to_csv(csv, index=False, float_format="%.3f")

    def watch(ended: threading.Event) -> None:
        while not ended.wait(SECONDS_BETWEEN_SAMPLES):
            found = sample(roots, folders, time.monotonic() - began)
            found.to_csv(csv, mode="a", header=False, index=False, float_format="%.3f")

    with in_background(watch, "watch", 10.0):
        yield


@contextmanager
def running(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Iterator[psutil.Process]:
    """Run a program in a process group of its own, all of which is ended after the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield psutil.Process(process.pid)
    finally:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, ending)
                process.wait(30)


def wait_until_up(url: str, log: Path) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(requests.RequestException):
            if requests.get(url, timeout=5).ok:
                return
        time.sleep(0.5)
    raise SystemExit(f"{url} does not answer:\n{log.read_text(errors='replace')}")


def tiny_project(folder: Path) -> dict[str, str]:
    """Make a project with a tiny model; return the environment for commands in it."""
    project = folder / "project"
    new_project(project)
    write_params(project, {"train": 2_000, "valid": 50, "test": 50}, **TINY)
    (folder / "tmp").mkdir()
    return STAGE_ENVIRONMENT | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(folder / "tmp"),
        "PREFECT_HOME": str(folder / "prefect"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{project}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
    }


def published_project(folder: Path) -> dict[str, str]:
    """Make a project and run its pipeline, which publishes the model; return the environment for commands in it."""
    environment = tiny_project(folder)
    subprocess.run(["dvc", "repro", "--quiet"], cwd=folder / "project", env=environment, check=True, stdout=sys.stderr)
    return environment


def training(options: argparse.Namespace) -> str:
    """Watch a training until it ends or the hours have passed; return what was done."""
    with TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "flows.stages", "train"]
        environment, log = STAGE_ENVIRONMENT | {"TMPDIR": temporary}, options.csv.with_suffix(".log")
        with nullcontext(psutil.Process(options.pid)) if options.pid else running(command, Path(), environment, log) as process:
            folders = {".state": Path(process.cwd()) / ".state", "temporary folder": Path(temporary)}
            with watched(options.csv, [process], folders), suppress(psutil.TimeoutExpired):
                process.wait(options.hours * 3600)
    return "A training"


def served(options: argparse.Namespace) -> str:
    """Watch a server of a tiny model while it answers; return what was done."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        project, log, environment = folder / "project", folder / "served.log", published_project(folder)
        address = f"http://{LOOPBACK}:{(port := free_port(LOOPBACK))}"
        model = read_json(project / PUBLISHED)["model_uri"]
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local", "--port", str(port)]
        with running(command, project, environment, log) as server:
            wait_until_up(f"{address}/ping", log)
            folders = {".state": project / ".state", "temporary folder": folder / "tmp"}
            with watched(options.csv, [server], folders):
                asked, answers = ask(f"{address}/invocations", options.requests, time.monotonic() + options.hours * 3600)
    return f"{asked:,} requests; {len(answers)} sentences were repeated and got {len(set(answers.values()))} different answers"


def ask(url: str, count: int, deadline: float) -> tuple[int, dict[str, str]]:
    """Send requests of a sentence each from several threads; every other one is one of the `REPEATED` sentences.

    Returns:
        The number of requests, which the deadline may bound, and the answers to the repeated sentences.

    Raises:
        SystemExit: a repeated sentence got another answer than before.
    """
    repeated, others = english_sentences("valid")[:REPEATED], english_sentences("train")
    answers: dict[str, str] = {}
    session = requests.Session()

    def send(number: int) -> bool:
        if time.monotonic() > deadline:
            return False
        again = number % 2 == 1
        sentence = repeated[number // 2 % REPEATED] if again else others[number // 2 % len(others)]
        response = session.post(url, json={"inputs": [sentence]}, timeout=START_SECONDS)
        response.raise_for_status()
        (answer,) = response.json()["predictions"]
        if again and answers.setdefault(sentence, answer) != answer:
            raise SystemExit(f"{sentence!r}: first {answers[sentence]!r}, then {answer!r}")
        return True

    with session, ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(send, range(count))), answers  # An exception cancels the requests that have not begun.


def flows(options: argparse.Namespace) -> str:
    """Watch a Prefect server and a worker while the pipeline runs again and again; return what was done."""
    from prefect.deployments import run_deployment
    from prefect.settings import PREFECT_API_URL, temporary_settings

    deadline = time.monotonic() + options.hours * 3600
    with TemporaryDirectory() as name:
        folder = Path(name)
        project, log = folder / "project", folder / "server.log"
        port = free_port(LOOPBACK)
        api = f"http://{LOOPBACK}:{port}/api"
        environment = tiny_project(folder) | {"PREFECT_API_URL": api}
        prefect = [sys.executable, "-m", "prefect"]
        folders = {
            ".state": project / ".state",
            ".dvc/tmp": project / ".dvc/tmp",
            "temporary folder": folder / "tmp",
            "PREFECT_HOME": folder / "prefect",
        }
        with running([*prefect, "server", "start", "--port", str(port)], project, environment, log) as server:
            wait_until_up(f"{api}/health", log)
            for command in (["work-pool", "create", "local", "--type", "process"], ["--no-prompt", "deploy", "--all"]):
                subprocess.run([*prefect, *command], cwd=project, env=environment, check=True, stdout=sys.stderr)
            worker = running([*prefect, "worker", "start", "--pool", "local"], project, environment, folder / "worker.log")
            settings = temporary_settings({PREFECT_API_URL: api})
            with worker as process, settings, watched(options.csv, [server, process], folders):
                done = 0
                while done < options.runs and time.monotonic() < deadline:
                    overrides = {"train.seed": done} if done % NEW_SEED_EVERY == NEW_SEED_EVERY - 1 else {}
                    run = run_deployment("pipeline/pipeline", parameters={"overrides": overrides}, poll_interval=1)
                    if run.state is None or not run.state.is_completed():
                        raise SystemExit(f"run {done}: {run.state}\n{(folder / 'worker.log').read_text(errors='replace')[-5000:]}")
                    done += 1
    return f"{done:,} flow runs, {done // NEW_SEED_EVERY} of them with another seed"


def report(options: argparse.Namespace) -> str:
    """Name the CSV whose table is printed."""
    return str(options.csv)


def main() -> None:
    """Run a part and print its table."""
    parser = command_line(__doc__)
    parts = parser.add_subparsers(required=True)
    for part in (training, served, flows, report):
        added = parts.add_parser(part.__name__, help=(part.__doc__ or "").partition(";")[0])
        added.set_defaults(run=part)
        if part is report:
            added.add_argument("csv", type=Path)
            continue
        added.add_argument("--csv", type=Path, default=Path(f"soak-{part.__name__}.csv"), help="file for the samples")
        added.add_argument("--hours", type=float, default=24.0, help="the most it takes")
        if part is training:
            added.add_argument("--pid", type=int, help="a running training; by default one is started")
        if part is served:
            added.add_argument("--requests", type=int, default=100_000)
        if part is flows:
            added.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends the servers, too.
    done = options.run(options)
    print(f"{done}. Samples: {options.csv}. The first {WARM_UP:.0%} of the time are not in the fit.\n")
    print(markdown(table(pd.read_csv(options.csv))))


if __name__ == "__main__":
    main()
