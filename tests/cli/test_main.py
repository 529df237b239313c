"""The command line as a whole: its start, its refusals, and its end as a process of its own."""

import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Call
from transformer_core import recipes

HEAVY = {"torch", "numpy", "pandas", "pydantic", "ruamel.yaml", "sentencepiece", "sacrebleu", "matplotlib", "jinja2"}


def loaded_by(arguments: list[str], folder: Path) -> set[str]:
    code = f"import sys; from transformer_core.cli import main\ntry: main({arguments!r})\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split())


def test_help_and_commands_without_a_model_load_only_what_they_need(tmp_path: Path) -> None:
    assert "argparse" in (loaded := loaded_by(["--help"], tmp_path))
    assert not loaded & HEAVY
    assert not loaded_by(["recipe", "tatoeba"], tmp_path) & {"torch", "pandas"}


def test_a_call_without_arguments_shows_the_help_with_the_other_modules_and_the_version_is_the_packages() -> None:
    alone, asked = (subprocess.run([COMMAND, *words], capture_output=True, text=True, check=True).stdout for words in ([], ["--help"]))
    assert alone == asked
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"transformer-pipeline {version('transformer-pipeline')}\n"
    modules = [f"flows{name}" for name in re.findall(r"(?: |flows)(\.[a-z]+)", alone.splitlines()[-1])]
    assert (len(modules), [name for name in modules if find_spec(name) is None]) == (6, [])


def test_the_help_of_each_command_has_a_sentence_and_an_example(call: Call, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """No command runs: an unknown option after those of the example is the first thing that is wrong with it."""

    def helped(*command: str) -> str:
        with pytest.raises(SystemExit):
            call(*command, "--help")
        return capsysbinary.readouterr().out.decode()

    names = re.findall(r"^    ([a-z]+)", helped(), re.MULTILINE)
    assert len(names) == 14
    for name in [*names, "data new", "data update", "data plan"]:
        shown = helped(*name.split())
        assert re.search(r"^[A-Z].*\.$", shown, re.MULTILINE), name
        example = shlex.split(shown.splitlines()[-1].removeprefix("example: transformer-core "))
        assert " ".join(example).startswith(name)
        if "--help" not in example:
            assert "unrecognized arguments: --wrong" in call(*example, "--wrong").err


def test_a_command_that_runs_out_of_memory_names_the_option_to_lower(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_core.decoding.translator.beam_search", lambda *_: bytes(1 << 58))
    line = "transformer-core: out of memory. Lower the option --batch-tokens, or use a machine with more."
    assert call("translate", "--model", "transformer", "--engine", "torch", stdin=b"the dog\n").refusal() == (78, line)


FAILING = """from flows.process.runner import reports_errors, run_stage
from transformer_core.errors import ExitCode, Interrupted, UserError
def main():
    raise {error}
raise SystemExit({call})
"""
RECIPE = [str(COMMAND), "recipe", "tatoeba"]
LIST = [str(COMMAND), "recipe"]
FULL_DISK = r"[\w-]+: No space left on device\. Free space or permit writing, then run it again\.\n"


def failing(error: str, call: str = "reports_errors(main)()") -> list[str]:
    return [sys.executable, "-c", FAILING.format(error=error, call=call)]


@pytest.mark.parametrize(
    ("streams", "command", "code", "said"),
    [
        ("", [str(COMMAND), "recipe", "nowhere"], 78, r"[^\n]*nowhere[^\n]*\n"),
        (">&-", RECIPE, 0, ""),
        (">/dev/full", LIST, 78, FULL_DISK),
        (">/dev/full", ["env", "PYTHONUNBUFFERED=1", *LIST], 78, FULL_DISK),
        (">&{unread}", LIST, 128 + signal.SIGPIPE, ""),
        (">&{unread}", failing("", "reports_errors(lambda: print('text') or 0)()"), 128 + signal.SIGPIPE, ""),
        (">&{unread} 2>&{unread}", failing("UserError('no')", "run_stage('toy', main)"), 65, ""),
        ("2>/dev/full", failing("UserError('away', '', ExitCode.UNAVAILABLE)"), 69, ""),
        ("2>/dev/full", failing("Interrupted('stopped')"), 75, ""),
        ("", failing("KeyboardInterrupt"), 75, "-c: interrupted\n"),
    ],
)
def test_a_broken_stream_changes_no_exit_code(streams: str, command: list[str], code: int, said: str, tmp_path: Path) -> None:
    """Nobody reads the pipe `unread`, as after the death of `tee` in `dvc repro 2>&1 | tee log`."""
    read, unread = os.pipe()
    os.close(read)
    (tmp_path / "params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    shell = ["bash", "-c", f'exec "$0" "$@" {streams.format(unread=unread)}', *command]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, pass_fds=[unread], check=False)
    os.close(unread)
    assert done.returncode == code
    assert re.fullmatch(said, done.stderr)
