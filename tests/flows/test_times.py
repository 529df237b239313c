from pathlib import Path

import pytest
from flows.process.times import record_seconds, seconds_of

from transformer_core.config import Params, load_params

RECIPE = Path(__file__).parents[2] / "transformer_core/recipes/synthetic.yaml"


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    return load_params(RECIPE)


def changed(params: Params, section: str, **values: object) -> Params:
    return params.model_copy(update={section: getattr(params, section).model_copy(update=values)})


def test_a_stage_that_has_not_run_here_has_no_time(params: Params) -> None:
    assert seconds_of("clean", params) is None


def test_a_stage_has_the_time_that_it_took_last(params: Params) -> None:
    record_seconds("bpe", params, 1.0)
    record_seconds("bpe", params, 61.26)
    assert seconds_of("bpe", params) == 61.3


@pytest.mark.parametrize("section", ["clean", "bpe"])
def test_with_other_settings_of_its_own_or_of_a_stage_before_its_time_is_not_known(params: Params, section: str) -> None:
    record_seconds("bpe", params, 1.0)
    other = {"clean": {"max_words": 7}, "bpe": {"seed": 7}}[section]
    assert seconds_of("bpe", changed(params, section, **other)) is None


def test_what_comes_after_a_stage_does_not_concern_its_time(params: Params) -> None:
    record_seconds("train", params, 1.0)
    assert seconds_of("train", changed(changed(params, "decode", beam=9), "machine", devices=8)) == 1.0
    assert seconds_of("train", changed(params, "model", layers=1)) is None
