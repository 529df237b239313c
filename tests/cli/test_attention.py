"""transformer-core attention: the files it leaves, and how it names what it cannot show."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.conftest import SIZE, Call
from tests.models.on_disk import VOCAB, write_model
from transformer_core.corpus.placeholders import SYMBOLS
from transformer_core.models.architectures import build


def test_a_pair_gives_a_picture_of_each_kind_and_the_numbers(call: Call) -> None:
    done = call("attention", "--model", "transformer", "--out", "seen/it", "the dog sees", "der Hund sieht")
    assert done == (0, "seen/it: encoder.svg, decoder.svg, cross.svg, attention.json (layers 1, 2; heads 1, 2)\n", "")
    pictures = [Path(f"seen/it/{kind}.svg") for kind in ("encoder", "decoder", "cross")]
    assert {*Path("seen/it").iterdir()} == {Path("seen/it/attention.json"), *pictures}
    assert all(picture.read_bytes().startswith(b"<?xml") for picture in pictures)
    document = json.loads(Path("seen/it/attention.json").read_text(encoding="utf-8"))
    assert ["".join(document[side]) for side in ("source", "target_predicted")] == ["▁the▁dog▁sees</s>", "▁der▁Hund▁sieht</s>"]
    assert len(document["attention"]) == 3 * 2 * 2
    for head in document["attention"]:
        assert np.array(head["weights"]).sum(axis=1) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "layers_and_heads", "heads"),
    [
        ("transformer --kind cross --layers 2 --heads 2,1,2", "layers 2; heads 1, 2", [("cross", 2, 1), ("cross", 2, 2)]),
        ("recurrent", "layers 1; heads 1", [("cross", 1, 1)]),
    ],
)
def test_layers_heads_and_a_kind_can_be_chosen(options: str, layers_and_heads: str, heads: list[tuple[str, int, int]], call: Call) -> None:
    done = call("attention", "--out", "a", "--model", *options.split(), "the dog", "der Hund")
    assert done.out == f"a: cross.svg, attention.json ({layers_and_heads})\n"
    document = json.loads(Path("a/attention.json").read_text(encoding="utf-8"))
    assert [(head["kind"], head["layer"], head["head"]) for head in document["attention"]] == heads


def test_without_a_target_the_models_own_translation_is_shown(call: Call, tmp_path: Path) -> None:
    done = call("attention", "--model", "transformer", "--out", "a", "--kind", "cross", "the dog sees a cat")
    translation, made, end = done.out.split("\n")
    assert (made[:2], end) == ("a:", "")
    document = json.loads((tmp_path / "a" / "attention.json").read_text(encoding="utf-8"))
    shown = "".join(document["target_predicted"]).removesuffix("</s>").replace("▁", " ").strip()
    assert shown == translation != ""


def test_of_a_model_whose_numbers_overflow_the_weights_are_null_and_there_is_no_translation(call: Call, tmp_path: Path) -> None:
    model = build(SIZE, VOCAB)
    with torch.no_grad():
        model.output_weight.mul_(1e30)  # These are the embeddings, too: the product of two is beyond float32.
    write_model(model, tmp_path / "overflowing")
    shown = ("attention", "--model", "overflowing", "--out", "a", "the dog")
    line = "precision float32: the logits of a sentence are not finite. Take another checkpoint, or train again."
    assert call(*shown).refusal() == (78, line)
    assert not (tmp_path / "a").exists()
    assert call(*shown, "der Hund").code == 0
    document = json.loads((tmp_path / "a" / "attention.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert {weight for head in document["attention"] for row in head["weights"] for weight in row} == {None}


def test_strings_are_shown_as_the_placeholders_that_a_model_reads_and_printed_as_they_are(call: Call, tmp_path: Path) -> None:
    torch.manual_seed(4)  # With which it writes the third one.
    write_model(build(SIZE, VOCAB + 9), tmp_path / "masked", user_symbols=[*SYMBOLS])

    def shown(*target: str) -> tuple[str, str, str]:
        done = call("attention", "--model", "masked", "--out", "a", "--kind", "cross", "the <b> <i> <u> house", *target)
        document = json.loads(Path("a/attention.json").read_text(encoding="utf-8"))
        return "".join(document["source"]), "".join(document["target_predicted"]).removesuffix("</s>"), done.out.split("\n")[0]

    assert shown("das <u>Haus")[:2] == ("▁the▁⟦1⟧▁⟦2⟧▁⟦3⟧▁house</s>", "▁das▁⟦3⟧Haus")
    _, pieces, printed = shown()
    assert "⟦3⟧" in pieces
    assert printed == pieces.replace("⟦3⟧", "<u>").replace("▁", " ").strip()
