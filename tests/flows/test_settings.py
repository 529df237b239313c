import json
from pathlib import Path

import pytest

from flows.process.settings import apply_settings, tracked, write_params
from transformer_core.config import load_params
from transformer_core.errors import UserError
from transformer_core.recipes import load, read

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((REPOSITORY / "transformer_core/recipes/synthetic.yaml").read_bytes())


def test_without_parameters_the_file_is_not_touched() -> None:
    before = Path("params.yaml").read_bytes()
    assert write_params(None, {}) is None
    assert Path("params.yaml").read_bytes() == before


@pytest.mark.parametrize("damage", ["train: [", "- 1", "", "a: !!python/name:os.system ''", "a: &a [*a]", "a: 2001-99-99", "a: 2001-01-01"])
def test_a_damaged_params_file_is_refused_by_whoever_reads_it(damage: str) -> None:
    Path("params.yaml").write_text(damage, encoding="utf-8")
    for reads in (lambda: write_params(None, {"train.updates": 600}), tracked, lambda: apply_settings({}, Path())):
        with pytest.raises(UserError, match=r"params\.yaml"):
            reads()
    assert Path("params.yaml").read_text(encoding="utf-8") == damage


def test_overrides_change_their_keys_and_nothing_else_and_the_file_before_is_kept() -> None:
    before, text = load_params(), Path("params.yaml").read_text(encoding="utf-8")
    kept = write_params(None, {"train.updates": 600, "model.layers": 2, "machine.devices": 2})
    after = load_params()
    assert (after.train.updates, after.model.layers, after.machine.devices) == (600, 2, 2)
    assert after.train.model_copy(update={"updates": before.train.updates}) == before.train
    assert "# A quarter, so that an update mixes lengths" in Path("params.yaml").read_text(encoding="utf-8")
    assert kept is not None
    assert kept.read_text(encoding="utf-8") == text
    assert write_params(None, {"train.updates": 600}) is None


def test_a_recipe_takes_the_place_of_all_but_the_machine() -> None:
    write_params(None, {"machine.devices": 2})
    write_params("multi30k", {"train.updates": 5000})
    params = load_params()
    assert params.machine.devices == 2
    assert params.train == load("multi30k").train.model_copy(update={"updates": 5000})
    assert params.download == load("multi30k").download


@pytest.mark.parametrize(
    ("recipe", "overrides", "fault"),
    [
        ("multi30", {}, "recipe 'multi30': no such recipe. Did you mean multi30k?"),
        (None, {"train.warmpu": 1}, "params.yaml: train.warmpu: unknown key. Did you mean 'warmup'?"),
        (None, {"train.warmup": "x"}, "params.yaml: train.warmup: must be a whole number above 0, got 'x'"),
        (None, {"trian.warmup": 1}, "params.yaml: trian: unknown key"),
        (None, {"updates": 1}, "override 'updates': must name section and key"),
        (None, {"average.count": 50}, "params.yaml: average.count: must be at most train.keep (5), got 50"),
        (None, {"model.heads": 5}, "model.heads: 5 heads do not divide d_model 192"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(recipe: str | None, overrides: dict[str, object], fault: str) -> None:
    before = Path("params.yaml").read_bytes()
    with pytest.raises(UserError) as raised:
        write_params(recipe, overrides)
    assert str(raised.value).startswith(fault)
    assert raised.value.exit_code == 78
    assert Path("params.yaml").read_bytes() == before


def test_another_machine_applies_what_is_tracked_and_keeps_its_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params("wmt14-en-de-base", {"train.updates": 7000, "machine.devices": 2})
    sent = json.loads(json.dumps(tracked()))
    (tmp_path / "there").mkdir()
    (tmp_path / "there/params.yaml").write_text(read("synthetic").replace("  threads:\n", "  threads: 3\n"), encoding="utf-8")
    apply_settings(sent, tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    assert json.loads(json.dumps(tracked())) == sent
    machine = load_params().machine
    assert (machine.devices, machine.threads) == (None, 3)
