"""Stages run in this process, as `python -m flows.stages NAME` runs them in one of their own."""

import io
import signal
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from typing import NamedTuple

import torch

from flows.process.runner import run_here, run_stage
from flows.process.signals import STOP_SIGNALS
from transformer_core import recipes
from transformer_core.config import PARAMS_FILE, Params
from transformer_core.files import write_text
from transformer_core.yaml_io import editable_yaml, yaml_text


def set_params(**sections: Mapping[str, object]) -> None:
    """Write params.yaml: the default recipe, or the file that is there, with these keys changed by section."""
    text = PARAMS_FILE.read_text(encoding="utf-8") if PARAMS_FILE.exists() else recipes.read("tatoeba")
    document = editable_yaml(text, str(PARAMS_FILE))
    for section, keys in sections.items():
        document[section].update(keys)
    write_text(PARAMS_FILE, yaml_text(document))


def changed(params: Params, section: str, **keys: object) -> Params:
    """Params with these keys of a section changed."""
    return params.model_copy(update={section: getattr(params, section).model_copy(update=keys)})


class Ended(NamedTuple):
    """Exit code and both streams."""

    returncode: int
    stdout: str
    stderr: str


def stage_here(name: str, body: Callable[[Params], str] | None = None, code: int | None = None) -> Ended:
    """Run a stage of the repository, or a body of the test's own, which must end with `code`; signal handlers and threads are put back."""
    body = body or import_module(f"flows.stages.{name}").run
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    threads = torch.get_num_threads()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            found = run_stage(name, partial(run_here, name, body))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            torch.set_num_threads(threads)
    assert code in (None, found), err.getvalue()
    return Ended(found, out.getvalue(), err.getvalue())
