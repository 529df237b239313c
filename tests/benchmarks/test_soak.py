"""The soak benchmark: its fit, its table, and each of its parts in the shortest form."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from benchmarks.common import DATA_STAGES, run_stages, write_params
from benchmarks.soak import TINY, WARM_UP, ask, levels, main, program, sample, slope, table
from tests.flows.publishing import publish_in, random_model
from tests.serving import Quiet, serving

SECONDS = np.arange(0, 7200, 5.0)
COLUMNS = ["process or folder", "hours", "megabytes", "handles", "threads", "megabytes an hour, 95%"]


def memory(slope: float, seed: int) -> np.ndarray:
    """Megabytes at SECONDS: a start that levels off in the warm-up, a line, and noise in which each sample depends on the one before."""
    noise, steps = np.zeros_like(SECONDS), np.random.default_rng(seed).normal(size=len(SECONDS))
    for number in range(1, len(noise)):
        noise[number] = 0.9 * noise[number - 1] + steps[number]
    start = np.minimum(0, 200 * (SECONDS / (WARM_UP * SECONDS[-1]) - 1))
    return 500 + start + slope * SECONDS / 3600 + noise


def samples(**subjects: list[float] | np.ndarray) -> pd.DataFrame:
    """Samples of processes, every 5 seconds from the first one of all, given their megabytes."""
    parts = [
        pd.DataFrame({"seconds": SECONDS[: len(values)], "subject": name, "megabytes": values, "handles": 7.0, "threads": 2.0})
        for name, values in subjects.items()
    ]
    return pd.concat(parts)


@pytest.mark.parametrize("known", [0.0, 3.5])
def test_the_interval_covers_a_known_slope_as_often_as_it_says(known: float) -> None:
    found = [slope(levels(samples(one=memory(known, seed)))) for seed in range(200)]
    assert np.mean([value for value, _ in found]) == pytest.approx(known, abs=0.1)
    # 95% of 200 is 190 with a standard deviation of 3.1. A fit to all single samples covers it in 70.
    assert sum(abs(value - known) <= margin for value, margin in found) >= 190 - 4 * 3.1


def test_the_table_has_folders_and_what_lived_long() -> None:
    rows = table(samples(server=[100.0] * 20, run=[50.0] * 9, **{".state": [1.0] * 20}))
    assert list(rows.columns) == COLUMNS
    assert rows["process or folder"].tolist() == ["server", ".state"]
    assert rows["handles"].tolist() == ["7 to 7"] * 2
    assert rows[COLUMNS[-1]].tolist() == ["+0.00 ± 0.00"] * 2
    assert table(samples(server=[1.0, 2.0]))[COLUMNS[-1]].tolist() == ["too few samples"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/venv/bin/python -u -m flows.stages train", "flows.stages train"),
        ("python -m flows.places.torchrun --standalone -m flows.stages train", "flows.places.torchrun"),
        ("python3.11 /venv/bin/mlflow models serve", "mlflow models"),
        ("python", "python"),
        ("/usr/bin/git gc --auto", "git gc"),
    ],
)
def test_a_process_is_named_after_what_it_runs(command: str, name: str) -> None:
    assert program(command.split()) == name


def test_a_sample_has_each_process_of_the_tree_and_the_size_of_folders(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/file").write_bytes(bytes(2_000_000))
    child = "import time; files = [open('/dev/null') for _ in range(50)]; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = sample([psutil.Process(os.getpid())], {"folder": tmp_path}, 1.5).set_index("subject")
        process.kill()
    (own,) = (row for name, row in found.iterrows() if str(name).endswith(f" {process.pid}"))
    assert (own["seconds"], own["threads"]) == (1.5, 1)
    assert own["handles"] >= 50
    assert 1 < own["megabytes"] < 100
    assert found.loc["folder", "megabytes"] == 2


@contextmanager
def answering(answer: Callable[[str], str]) -> Iterator[str]:
    """The address of a server that answers each sentence as a function says."""

    class Handler(Quiet):
        def do_POST(self) -> None:
            (sentence,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
            body = json.dumps({"predictions": [answer(sentence)]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as host:
        yield f"http://{host}"


def test_an_answer_that_changes_ends_the_requests() -> None:
    with answering(str.upper) as address:
        asked, answers = ask(address, 400, deadline=np.inf)
    assert (asked, len(answers)) == (400, 100)
    assert all(answer == sentence.upper() for sentence, answer in answers.items())
    seen: list[str] = []

    def forgetful(sentence: str) -> str:
        seen.append(sentence)
        return f"{sentence} {len(seen) > 300}"

    with answering(forgetful) as address, pytest.raises(SystemExit, match=r"first .*, then "):
        ask(address, 4_000, deadline=np.inf)
    assert len(seen) < 1_000  # The other clients have stopped, too: a repeated sentence comes at the latest after 200 others.


Soak = Callable[..., tuple[str, set[str]]]


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Soak]:
    """Runs a part in this process; what it prints, and the names in the first column of its table."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[str, set[str]]:
        csv = tmp_path / "samples.csv"
        monkeypatch.setattr(sys, "argv", ["soak.py", *arguments, "--csv", str(csv)])
        main()
        printed = capfd.readouterr().out
        head, _, *rows = [line for line in printed.splitlines() if line.startswith("| ")]
        assert head == "| " + " | ".join(COLUMNS) + " |"
        assert set(pd.read_csv(csv).columns) == {"seconds", "subject", "megabytes", "handles", "threads"}
        return printed, {re.sub(r" \d+$", "", row.split(" | ")[0].removeprefix("| ")) for row in rows}

    for module in ("soak", "common"):  # They have read the environment before it was isolated.
        monkeypatch.setattr(f"benchmarks.{module}.STAGE_ENVIRONMENT", dict(os.environ))
    monkeypatch.setitem(TINY, "train", {**TINY["train"], "updates": 10, "save_every": 5, "validate_every": 10})
    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.slow  # Some seconds: stages of data, then a training of 10 updates.
def test_a_training_is_watched(soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, {"train": 1_000, "valid": 20, "test": 20}, **TINY)
    run_stages(DATA_STAGES, tmp_path)
    _, watched = soak("training")
    assert {"flows.stages train", ".state"} <= watched


@pytest.mark.slow  # Ten seconds: a server's start, 20 requests.
def test_the_served_model_is_watched(soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of random weights, published within this process; the test below runs the whole pipeline."""

    def random_project(folder: Path) -> dict[str, str]:
        (folder / "project").mkdir()
        with monkeypatch.context() as patch:
            publish_in(folder / "project", random_model(tmp_path), patch)
            return dict(os.environ)

    monkeypatch.setattr("benchmarks.soak.published_project", random_project)
    printed, watched = soak("served", "--requests", "20")
    assert "20 requests; 10 sentences were repeated" in printed
    assert {"mlflow models", "uvicorn", ".state"} <= watched


@pytest.mark.slow  # Half a minute: a Prefect server, one flow run with the whole pipeline.
def test_flow_runs_are_watched(soak: Soak) -> None:
    _, watched = soak("flows", "--runs", "1")
    assert {"prefect server", "prefect worker", ".state", ".dvc/tmp", "PREFECT_HOME"} <= watched
