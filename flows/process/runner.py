"""The process of a stage: its lock, its signals, its exit code, the report of its exit for schedulers, its duration, its threads."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TextIO

import psutil

from flows.process.energy import metered
from flows.process.exits import BUG, SIGNALLED
from flows.process.paths import STATE, TRAINING_METRICS, sections_of, settings_up_to
from flows.process.signals import grace_seconds, ignore_stop_signals, stop_on_signals
from transformer_core.config import PARAMS_FILE, Params, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, for_terminal, machine_errors
from transformer_core.files import discard, flush_or_discard, locked, prepare_streams, read_json, repository, write_json
from transformer_core.yaml_io import read_yaml

# Environment variable: ids of the processes that started this one, separated by spaces, the nearest last. Written by `run_child`, by the
# commands of dvc.yaml and by torchrun. A process cannot ask for them itself: they may have died before it could.
STARTERS = "TRANSFORMER_STARTERS"
# Keys that bound the memory of a stage.
_MEMORY = {
    "clean": "machine.workers",
    "bpe": "bpe.sample",
    "binarize": "machine.workers",
    "train": "train.tokens_per_microbatch",
    "average": "average.count",
    "decode": "decode.batch_tokens or decode.beam",
}
_WATCH_SECONDS = 0.5
_RUNS_KEPT = 20

Arguments = ParamSpec("Arguments")


class StageError(Exception):
    """A stage, or DVC or git for it, ended with `exit_code`; the message is the reason."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(exit_code, for_terminal(message))  # Pickle makes a copy from these.
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.args[1]} (exit code {self.exit_code})"


def reports_errors(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorate a command's main function: print a `UserError`, a `StageError` or an interruption as one line, and return its exit code.

    If the reader of the output has ended (`| head`), the exit code is that of a filter that SIGPIPE ended.
    """

    @wraps(main)
    def wrapped(*positional: Arguments.args, **named: Arguments.kwargs) -> int:
        command = Path(sys.argv[0]).stem
        prepare_streams()
        try:
            with machine_errors(command, "Use a machine with more."):
                code = main(*positional, **named)
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            discard(sys.stdout)
            return SIGNALLED + signal.SIGPIPE
        except Interrupted as error:
            echo(f"{error}. Run it again to resume.", sys.stderr)
            return ExitCode.INTERRUPTED
        except KeyboardInterrupt:
            echo(f"{command}: interrupted", sys.stderr)
            return ExitCode.INTERRUPTED
        except (UserError, StageError) as error:
            echo(str(error), sys.stderr)
            flush_or_discard(sys.stdout)
            return error.exit_code

    return wrapped


def run_stage(name: str, body: Callable[[], str], report_name: str = "") -> int:
    """Run a stage, here or elsewhere, and return the exit code of its process. `body` returns the closing line.

    The first of the stop signals and the death of the process that started this one (`exit_with_starters`) raises `Interrupted` in
    `body`; later signals are ignored during clean-up. A stage with a state to save (train) installs its own handlers in `body` and raises
    `Interrupted` after it has saved; they are not restored here.

    At the end, `.state/exit/NAME.json` has {code, message, remedy}; `report_name` is another NAME. It is absent before, and after SIGKILL.
    """
    report = exit_file(report_name or name)
    prepare_streams()
    try:
        stop_on_signals()
        exit_with_starters()
        with machine_errors(name, memory_remedy(name)):
            report.unlink(missing_ok=True)
            try:
                closing = body()
            finally:
                ignore_stop_signals()  # So that the report of the exit is written.
    except (UserError, StageError, Interrupted) as error:
        if isinstance(error, Interrupted):
            error = UserError(str(error) or f"{name}: interrupted", "Run it again to resume.", ExitCode.INTERRUPTED)
        message, remedy = (error.message, error.remedy) if isinstance(error, UserError) else (str(error), "")
        report_exit(report, error.exit_code, message, remedy)
        echo(str(error), sys.stderr)
        return error.exit_code
    except BaseException as error:
        report_exit(report, BUG, f"{name}: {type(error).__name__}: {error}", "The traceback is in the log.")
        traceback.print_exc()
        return BUG
    report_exit(report, ExitCode.DONE, closing)
    echo(closing, sys.stdout)
    return ExitCode.DONE


def run_here(name: str, body: Callable[[Params], str], lock: str = "") -> str:
    """Run a stage on this machine under its lock, and return its closing line; `lock` is another name for it.

    Raises `UserError`: 69 if the stage is running in this repository: the other process will end (often it is saving after a stop), so a
    retry is right. 78 if the settings were edited meanwhile.
    """
    with locked(STATE / "locks" / (lock or name), f"stage {name}"):
        before, params = read_yaml(PARAMS_FILE), load_params()
        began = time.monotonic()
        closing, kwh = metered(partial(body, params))
        after = read_yaml(PARAMS_FILE)
        for section in sections_of(name):
            if after.get(section) != before.get(section):  # DVC, which reads them now, would record the new ones.
                fault = f"{PARAMS_FILE}: section {section} was edited while stage {name} ran with the previous settings"
                raise configuration_error(fault, "Run again, with or without the edit; without it a training is not repeated.")
        if not lock:
            trained = 60 * read_json(TRAINING_METRICS)["minutes"] if name == "train" and TRAINING_METRICS.exists() else 0  # In all parts.
            record_run(name, params, max(time.monotonic() - began, trained), kwh)
    return closing


def memory_remedy(stage: str) -> str:
    """Return what to do if a stage runs out of memory."""
    return f"Lower {_MEMORY[stage]}, or use a machine with more." if stage in _MEMORY else "Use a machine with more."


def exit_file(name: str) -> Path:
    """Return the path of the report of the exit of stage `name`."""
    return STATE / f"exit/{name}.json"


def report_exit(path: Path, code: int, message: str, remedy: str = "") -> None:
    """Write the report of an exit. If the disk is full or read-only, there is none: the exit code and the printed line are the same."""
    with suppress(OSError):
        write_json(path, {"code": int(code), "message": message, "remedy": remedy})


class StageRun(NamedTuple):
    """A successful run of a stage here: its seconds, its energy if that was metered, and the settings that it depends on."""

    seconds: float
    kwh: float | None
    settings: Mapping[str, Any]


def record_run(stage: str, params: Params, seconds: float, kwh: float | None = None) -> None:
    """Add a run to `.state/times/STAGE.json`, which has the last ones, the latest first; an output of DVC must not vary."""
    runs = [StageRun(round(seconds, 1), kwh, settings_up_to(stage, params)), *past_runs(stage)]
    write_json(_times_file(stage), [run._asdict() for run in runs[:_RUNS_KEPT]])


def past_runs(stage: str) -> list[StageRun]:
    """Return the last runs of a stage here, in worktrees too, the latest first; none if the file is missing or damaged."""
    with suppress(OSError, UserError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
        found = read_json(_times_file(stage))
        return [StageRun(float(run["seconds"]), run["kwh"] and float(run["kwh"]), dict(run["settings"])) for run in found]
    return []


def last_run(stage: str, params: Params) -> StageRun | None:
    """Return the last run of a stage here with these settings, its own and those of stages before; None without one."""
    return next((run for run in past_runs(stage) if run.settings == settings_up_to(stage, params)), None)


def _times_file(stage: str) -> Path:
    return repository() / STATE / "times" / f"{stage}.json"


def echo(line: str, stream: TextIO) -> None:
    """Print a line. If the stream is broken (a dead `tee`, a full disk), discard this and all later output: no result is lost for a log."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        discard(stream)


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str, closing_seconds: float) -> Iterator[None]:
    """Run `work` in a thread during the block. At its end set the event given to `work`, and wait `closing_seconds` for the thread."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(closing_seconds)


def exit_with_starters() -> None:
    """Send this process SIGTERM within a second when one of the processes that started it dies, or has died already (`STARTERS`).

    If it has not ended after `grace_seconds`, it is killed: nobody else would.
    """
    if numbers := [int(number) for number in os.environ.get(STARTERS, "").split()]:
        # The time is read here: a thread that reads a file while Python ends can end the process by a segmentation fault.
        threading.Thread(target=_watch, args=(numbers, grace_seconds()), name="exit-with-starters", daemon=True).start()


def _watch(numbers: Sequence[int], seconds: float) -> None:
    with suppress(psutil.NoSuchProcess):
        followed = [psutil.Process(number) for number in numbers]
        while all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in followed):
            time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
