"""transformer-core positions: the file it leaves, and what it refuses."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Call


def test_without_a_model_the_papers_encodings_are_drawn(call: Call, tmp_path: Path) -> None:
    done = call("positions", "--out", "a/positions.svg")
    assert done == (0, "a/positions.svg: 100 sinusoidal positions of 512 dimensions\n", "")
    assert ElementTree.parse(tmp_path / "a/positions.svg").getroot().tag.endswith("svg")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["positions.svg"]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ("--d-model 8 --positions 1200", "1,200 sinusoidal positions of 8 dimensions"),
        ("--model transformer", "100 sinusoidal positions of 16 dimensions"),
        ("--model convolutional --positions 5", "5 sinusoidal positions of 16 dimensions"),
        ("--model learned", "6 learned positions of 16 dimensions"),
        ("--model learned --positions 4", "4 learned positions of 16 dimensions"),
    ],
)
def test_sizes_or_a_model_can_be_chosen(arguments: str, made: str, call: Call) -> None:
    assert call("positions", "--out", "a.svg", *arguments.split()) == (0, f"a.svg: {made}\n", "")
    assert Path("a.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("--model recurrent", 78, "this model has no positional encodings: a recurrent one reads the words in their order"),
        ("--model learned --positions 7", 78, "7 positions requested, but the model has learned 6"),
        ("--model transformer --d-model 16", 78, "--d-model: cannot be combined with --model, which has its own"),
        ("--model nowhere", 65, "nowhere/config.json: no such file"),
        ("--d-model 7", 78, "d_model is 7"),
        ("--positions 1", 78, "argument --positions: must be a whole number, 2 or more, got '1'"),
        ("--positions 100000", 78, "are 51,200,000 values, more than 4,000,000. Choose fewer positions."),
        ("--out a.png", 78, "argument --out: must be a file whose name ends in .svg, got 'a.png'"),
        ("--out mine/a.svg", 78, "--out: mine/a.svg cannot be written (File exists)"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_leaves_nothing(arguments: str, code: int, line: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file", encoding="utf-8")
    found, said = call("positions", "--out", "a.svg", *arguments.split()).refusal()
    assert found == code
    assert line in said
    assert not list(tmp_path.glob("*.svg"))
