from pathlib import Path

import pytest

from flows.dvc.settings import settings_of_run
from tests.flows.stages import stage_here
from tests.refusals import refused
from transformer_core.config import check_params
from transformer_core.recipes import load, read
from transformer_core.yaml_io import yaml_text

pytestmark = pytest.mark.usefixtures("default_params")

DAMAGES = {
    "train: [": "params.yaml:1: not valid YAML",
    "- 1": "params.yaml: must be a ",
    read("tatoeba").replace("preset: tiny", "preset: tiny\n  heads: 5"): "params.yaml: model.heads: 5 heads do not divide d_model 192",
    read("tatoeba").replace("  warmup: ", "  warmpu: "): "params.yaml: train.warmpu: unknown key. Did you mean 'warmup'?",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_params_file_is_one_line_whoever_reads_it(damage: str) -> None:
    Path("params.yaml").write_text(damage, encoding="utf-8")
    with refused(78) as caught:
        settings_of_run(None, {"train.updates": 600})
    assert str(caught.value).startswith(DAMAGES[damage])
    assert "\n" not in str(caught.value)
    ended = stage_here("toy", lambda _: "begun")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (78, "", 1)
    assert ended.stderr.startswith(DAMAGES[damage])


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


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("train.warmpu", "params.yaml: train.warmpu: unknown key. Did you mean 'warmup'?"),
        ("updates", "override 'updates': must name section and key"),
    ],
)
def test_invalid_settings_are_one_line(key: str, fault: str) -> None:
    with refused(78, fault):
        settings_of_run(None, {key: 1})
