"""Stage average: the search that the model carries, its shortlist, and the choice of checkpoints."""

from pathlib import Path

import pytest
import torch

from flows.stages import decode
from flows.stages.average import run
from tests.corpus.encoded import write_binarized
from tests.flows.stages import changed
from tests.models.on_disk import TEXT, VOCAB, write_drawn
from tests.refusals import refused
from transformer_core import cli, recipes
from transformer_core.config import Params
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.files import write_json


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subword:
    """The working directory with one checkpoint and 100 training pairs; returns their vocabulary."""
    model = write_drawn(tmp_path / "model")
    checkpoints = tmp_path / "models/checkpoints"
    checkpoints.mkdir(parents=True)
    (model / "config.json").rename(checkpoints / "config.json")
    (model / "model.safetensors").rename(checkpoints / "update-0000005.safetensors")
    (tmp_path / "data/bpe").mkdir(parents=True)
    (model / "spm.model").rename(tmp_path / "data/bpe/spm.model")
    monkeypatch.chdir(tmp_path)
    subword = Subword.load(Path("data/bpe/spm.model"))
    sides = [[subword.encode(line) for line in lines] * 50 for lines in (TEXT[:2], TEXT[2:])]
    write_binarized(Path("data/binarized"), *sides, subword)
    return subword


def params(**average: object) -> Params:
    return changed(recipes.load("tatoeba"), "average", count=1, **average)


BY_TORCH = {"engine": "torch", "beam": 3, "penalty": "power", "alpha": 1.3, "max_extra": 4}


@pytest.mark.parametrize("own", [BY_TORCH, {"engine": "ctranslate2", "precision": "int8", "beam": 1, "max_extra": 7}])
def test_translate_gives_the_bytes_of_stage_decode_without_an_option(own: dict[str, object], here: Subword) -> None:
    lines = [*TEXT, "", "a dog"]
    tokens = [here.encode(line) for line in lines]
    write_binarized(Path("data/binarized"), tokens, tokens, here, ("valid", "test"))
    Path("data/raw").mkdir()
    for split in ("valid", "test"):
        write_lines(Path(f"data/raw/{split}.en"), lines)
    wanted = changed(changed(params(), "decode", **own), "machine", threads=torch.get_num_threads())
    run(wanted)
    decode.run(wanted)
    write_lines(Path("lines"), lines)
    assert cli.main(["translate", "--model", "models/averaged", "--out", "out", "lines"]) == 0
    assert Path("out").read_bytes() == Path("results/decode/test.hyp").read_bytes()
    assert cli.main(["translate", "--model", "models/averaged", "--max-extra", "1", "--beam", "2", "--out", "out", "lines"]) == 0
    assert Path("out").read_bytes() != Path("results/decode/test.hyp").read_bytes()


@pytest.mark.usefixtures("here")
def test_the_best_of_the_checkpoints_that_are_there_are_averaged() -> None:
    with refused(65, r"^models/checkpoints/scores\.json: "):
        run(params(of="best"))
    write_json(Path("models/checkpoints/scores.json"), {"best_by": "bleu", "scores": {"3": 9.0, "4": 1.0, "5": 2.0}})
    assert run(params(of="best")) == "models/averaged: the best checkpoint (update 5)"


def test_the_model_directory_has_a_shortlist_if_one_is_asked_for(here: Subword) -> None:
    assert run(params()).startswith("models/averaged: ")
    assert not Path("models/averaged", SHORTLIST).exists()
    run(params(shortlist=3))
    found = Shortlist.load(Path("models/averaged", SHORTLIST), VOCAB)
    assert sorted(path.name for path in Path("models/averaged").iterdir()) == ["config.json", "model.safetensors", SHORTLIST, "spm.model"]
    dog, house = (found.of(here.encode(word)) for word in ("the dog sees a cat", "a cat sees the house"))
    assert {*here.encode("der Hund")} & {*dog.tolist()} - {*found.frequent.tolist()}
    assert dog.tolist() != house.tolist()
    assert len(dog) < VOCAB
