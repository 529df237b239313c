import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.process.settings import apply_settings, check_settings_of_run, own_settings, settings_of_run, tracked
from tests.flows.stages import stage_here
from tests.refusals import refused
from transformer_core.config import load_params
from transformer_core.recipes import load, read

pytestmark = pytest.mark.usefixtures("default_params")


def test_without_parameters_the_file_is_not_touched_and_runs_go_side_by_side() -> None:
    before = Path("params.yaml").read_bytes()
    with settings_of_run(None, {}), settings_of_run(None, {}):
        assert Path("params.yaml").read_bytes() == before


DAMAGES = {
    "train: [": "params.yaml:1: not valid YAML",
    "- 1": "params.yaml: must be a ",
    "a: !!python/name:os.system ''": "params.yaml:1: not valid YAML",
    "a: 2001-99-99": "params.yaml: not valid YAML",
    read("tatoeba").replace("preset: tiny", "preset: tiny\n  heads: 5"): "params.yaml: model.heads: 5 heads do not divide d_model 192",
    read("tatoeba").replace("  warmup: ", "  warmpu: "): "params.yaml: train.warmpu: unknown key. Did you mean 'warmup'?",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_params_file_is_one_line_whoever_reads_it(damage: str) -> None:
    Path("params.yaml").write_text(damage, encoding="utf-8")
    doors: list[Callable[[], object]] = [
        lambda: settings_of_run(None, {"train.updates": 600}).__enter__(),
        lambda: check_settings_of_run(None, {"train.updates": 600}),
        tracked,
        own_settings,
    ]
    for door in doors:
        with refused(78) as caught:
            door()
        assert str(caught.value).startswith(DAMAGES[damage])
        assert "\n" not in str(caught.value)
    ended = stage_here("toy", lambda _: "begun")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (78, "", 1)
    assert ended.stderr.startswith(DAMAGES[damage])
    assert Path("params.yaml").read_text(encoding="utf-8") == damage


def test_overrides_change_their_keys_for_the_run_alone() -> None:
    before, text = load_params(), Path("params.yaml").read_text(encoding="utf-8")
    with settings_of_run(None, {"train.updates": 600, "model.layers": 2, "machine.devices": 2}):
        after = load_params()
        assert "# A quarter, so that an update mixes lengths" in Path("params.yaml").read_text(encoding="utf-8")
    assert (after.train.updates, after.model.layers, after.machine.devices) == (600, 2, 2)
    assert after.train.model_copy(update={"updates": before.train.updates}) == before.train
    assert Path("params.yaml").read_text(encoding="utf-8") == text
    with pytest.raises(ZeroDivisionError), settings_of_run(None, {"train.updates": 600}):
        raise ZeroDivisionError
    assert Path("params.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("edited", [False, True])
def test_after_a_run_that_was_killed_the_next_puts_the_file_back_unless_it_was_edited(
    edited: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = original = Path("params.yaml").read_text(encoding="utf-8")
    code = "import os; from flows.process.settings import settings_of_run as of\nwith of(None, {'train.seed': 7}): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert load_params().train.seed == 7
    if edited:
        before = Path("params.yaml").read_text(encoding="utf-8").replace("updates: ", "updates: 1")
        Path("params.yaml").write_text(before, encoding="utf-8")
    with settings_of_run(None, {}):
        assert Path("params.yaml").read_text(encoding="utf-8") == before
    earlier = list(Path(".state/params").iterdir())
    assert [file.read_text(encoding="utf-8") for file in earlier] == ([original] if edited else [])
    assert (f"The file before that run is {earlier[0]}\n" in capsys.readouterr().err) if edited else not capsys.readouterr().err


@pytest.mark.parametrize(("first", "others"), [({}, [{"train.seed": 8}]), ({"train.seed": 7}, [{}, {"train.seed": 8}])])
def test_a_second_run_does_not_take_the_settings_of_the_first(first: dict[str, object], others: list[dict[str, object]]) -> None:
    with settings_of_run(None, first):
        seed = load_params().train.seed
        for overrides in others:
            with refused(69, "another run of the flow is running in process "), settings_of_run(None, overrides):
                pass
        if first:
            with refused(69, "another run of the flow is running"):
                own_settings()
        assert load_params().train.seed == seed


def test_a_recipe_takes_the_place_of_all_but_the_machine() -> None:
    Path("params.yaml").write_text(read("tatoeba").replace("  devices:\n", "  devices: 2\n"), encoding="utf-8")
    with settings_of_run("multi30k", {"train.updates": 5000}):
        params = load_params()
    assert params.machine.devices == 2
    assert params.train == load("multi30k").train.model_copy(update={"updates": 5000})
    assert params.download == load("multi30k").download


@pytest.mark.parametrize(
    ("recipe", "overrides", "fault"),
    [
        ("multi30", {}, "recipe 'multi30': no such recipe. Did you mean multi30k?"),
        (None, {"train.warmpu": 1}, "params.yaml: train.warmpu: unknown key. Did you mean 'warmup'?"),
        (None, {"updates": 1}, "override 'updates': must name section and key"),
    ],
)
def test_invalid_settings_are_one_line_and_nothing_is_written(recipe: str | None, overrides: dict[str, object], fault: str) -> None:
    before = Path("params.yaml").read_bytes()
    with refused(78) as raised, settings_of_run(recipe, overrides):
        pass
    assert str(raised.value).startswith(fault)
    with refused(78) as checked:
        check_settings_of_run(recipe, overrides)
    assert str(checked.value) == str(raised.value)
    assert Path("params.yaml").read_bytes() == before


def test_another_machine_applies_what_is_tracked_and_keeps_its_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings_of_run("wmt14-en-de-base", {"train.updates": 7000, "machine.devices": 2}):
        sent = json.loads(json.dumps(tracked()))
    (tmp_path / "there").mkdir()
    (tmp_path / "there/params.yaml").write_text(read("tatoeba").replace("  threads:\n", "  threads: 3\n"), encoding="utf-8")
    apply_settings(sent, tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    assert json.loads(json.dumps(tracked())) == sent
    machine = load_params().machine
    assert (machine.devices, machine.threads) == (None, 3)
