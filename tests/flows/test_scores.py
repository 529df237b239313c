from pathlib import Path

import pytest

from flows.scores import main, table
from transformer_core.errors import ExitCode
from transformer_core.files import write_json

FIGURES = {
    "bleu": 38.4,
    "bleu_low": 36.91,
    "bleu_high": 40.02,
    "chrf": 64.21,
    "ter": 42.0,
    "paper_bleu": 39.5,
    "paper_bleu_signature": "multi-bleu|nrefs:1|case:mixed|tok:moses-de",
    "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "corpus": "multi30k",
    "synthetic": False,
    "lines": 1000,
    "copied": 0.2,
    "empty": 0.0,
    "over_long": 1.3,
    "valid": {"bleu": 39.0, "bleu_low": 37.5, "bleu_high": 40.5, "chrf": 65.0, "ter": 41.5, "paper_bleu": 40.1},
}


def test_scores_of_both_splits_stand_under_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "metrics.json", FIGURES)
    assert main(tmp_path / "metrics.json") == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == ["multi30k", "BLEU", "95%", "interval", "chrF2", "TER"]
    assert lines[1].split() == ["valid", "39.00", "37.50-40.50", "65.00", "41.50"]
    assert lines[2].split() == ["test", "38.40", "36.91-40.02", "64.21", "42.00"]
    assert lines[3] == "BLEU is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0, test has 1,000 lines"
    assert lines[4] == "The paper's BLEU, 39.50 on test, is multi-bleu|nrefs:1|case:mixed|tok:moses-de"
    assert lines[5] == "Of the test outputs 0.2% are copies, 0.0% empty, 1.3% over-long"
    assert len({len(line) for line in lines[:3]}) == 1


def test_scores_on_generated_text_are_labelled() -> None:
    assert "(generated text)" in table(FIGURES | {"synthetic": True})


def test_before_the_first_run_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path / "metrics.json") == ExitCode.BAD_DATA
    assert capsys.readouterr().err == f"{tmp_path}/metrics.json: no such file. Make it with: dvc repro\n"


def test_scores_of_an_earlier_version_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "metrics.json", {name: value for name, value in FIGURES.items() if name != "copied"})
    assert main(tmp_path / "metrics.json") == ExitCode.BAD_DATA
    expected = "has no copied, it is of an earlier version. Make it anew with: dvc repro\n"
    assert capsys.readouterr() == ("", f"{tmp_path}/metrics.json: {expected}")
