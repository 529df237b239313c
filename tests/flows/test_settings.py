from pathlib import Path

import pytest

from flows.dvc.settings import settings_of_run
from tests.flows.stages import stage_here
from tests.refusals import refused
from transformer_core.config import check_params
from transformer_core.recipes import load, read
from transformer_core.yaml_io import yaml_text

pytestmark = pytest.mark.usefixtures("default_params")


def test_a_wrong_params_file_is_one_line_whoever_reads_it() -> None:
    Path("params.yaml").write_text("train: [", encoding="utf-8")
    with refused(78, r"^params\.yaml:1: not valid YAML"):
        settings_of_run(None, {"train.updates": 600})
    ended = stage_here("toy", lambda _: "begun", code=78)
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    assert ended.stderr.startswith("params.yaml:1: not valid YAML")


def test_overrides_change_their_keys_and_no_file() -> None:
    before, text = load("tatoeba"), Path("params.yaml").read_bytes()
    document = settings_of_run(None, {"train.updates": 600, "model.layers": 2, "machine.devices": 2})
    after = check_params(document)
    assert (after.train.updates, after.model.layers, after.machine.devices) == (600, 2, 2)
    assert after.train.model_copy(update={"updates": before.train.updates}) == before.train
    assert "# A quarter, so that an update mixes lengths" in yaml_text(document)
    assert Path("params.yaml").read_bytes() == text


def test_a_recipe_takes_the_place_of_all_but_the_machine() -> None:
    Path("params.yaml").write_text(read("tatoeba").replace("  devices:\n", "  devices: 2\n"), encoding="utf-8")
    params = check_params(settings_of_run("multi30k", {"train.updates": 5000}))
    assert params.machine.devices == 2
    assert params.train == load("multi30k").train.model_copy(update={"updates": 5000})
    assert params.download == load("multi30k").download
