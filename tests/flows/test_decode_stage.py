"""Stage decode with either engine, on a model and sources of its own."""

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.stages import decode
from flows.stages.decode import run
from tests.corpus.encoded import write_binarized
from tests.flows.stages import changed
from tests.models.on_disk import TEXT, VOCAB, translations, write_drawn
from transformer_core import recipes
from transformer_core.config import Params
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, UNK, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import UserError
from transformer_core.processes import cpu_name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = write_drawn(tmp_path / "models/averaged")
    subword = Subword.load(model / "spm.model")
    lines = [subword.encode(line) for line in [*TEXT, ""]]
    write_binarized(tmp_path / "data/binarized", lines, lines, subword, ("valid", "test"))
    (tmp_path / "data/raw").mkdir()
    for split in ("valid", "test"):
        write_lines(tmp_path / f"data/raw/{split}.en", [*TEXT, ""])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def params(engine: str, **decode: object) -> Params:
    threads = torch.get_num_threads()  # The stage sets them, for this process too.
    return changed(changed(recipes.load("tatoeba"), "decode", engine=engine, max_extra=3, **decode), "machine", threads=threads)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_each_engine_leaves_translations_n_best_lists_and_how_they_were_made(engine: str, here: Path) -> None:
    assert run(params(engine)).startswith("results/decode: test in ")
    translated = (here / "results/decode/test.hyp").read_text(encoding="utf-8").split("\n")
    lists = [json.loads(line) for line in (here / "results/decode/test.nbest.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert translated[-2:] == ["", ""]
    assert all(translated[:4])
    assert [one[0]["text"] for one in lists] == translated[:-1]
    assert [len(one) for one in lists] == [4, 4, 4, 4, 1]
    statistics = json.loads((here / "results/decode/statistics.json").read_text(encoding="utf-8"))
    assert statistics["engine"] == engine
    assert date.fromisoformat(statistics["made"])
    on_gpu = torch.cuda.is_available() and engine == "torch"
    assert statistics["machine"] == (torch.cuda.get_device_name() if on_gpu else cpu_name())
    assert (statistics["beam"], statistics["alpha"], statistics["test"]["lines"]) == (4, 1.0, 5)
    assert statistics["test"]["hypotheses_a_line"] == 17 / 5
    assert statistics["unknown"] == {"valid": [0, 0, 5], "test": [0, 0, 5]}
    tokens, log_probability = statistics["test"]["target_tokens"], sum(one[0]["log_probability"] for one in lists)
    assert statistics["test"]["log_probability_a_token"] == pytest.approx(log_probability / tokens, abs=1e-4)


def test_the_test_sets_are_translated_by_the_model_that_the_training_started_from_too(here: Path) -> None:
    start = write_drawn(here / "pretrained/first", seed=2)
    run(changed(changed(params("torch"), "train", init_from="first"), "bpe", init_from="first"))
    search = Search(4, 1.0, "power", max_extra=3)
    wanted = [ranked[0].text for ranked in translations(Translator.load(start), [*TEXT, ""], search)]
    assert (here / "results/decode/start/test.hyp").read_text(encoding="utf-8").split("\n")[:-1] == wanted
    assert (here / "results/decode/test.hyp").read_text(encoding="utf-8").split("\n")[:-1] != wanted
    assert not (here / "results/decode/start/valid.hyp").exists()


def test_models_of_an_ensemble_translate_together(here: Path) -> None:
    with pytest.raises(UserError, match="pretrained/seeds: has no folder with a model"):
        run(params("torch", ensemble="seeds"))
    others = [write_drawn(here / f"pretrained/seeds/{seed}", seed=seed) for seed in (2, 3)]
    run(params("torch", ensemble="seeds"))
    search = Search(4, 1.0, "power", max_extra=3)
    wanted = [ranked[0].text for ranked in translations(Translator.load(here / "models/averaged", *others), [*TEXT, ""], search)]
    assert (here / "results/decode/test.hyp").read_text(encoding="utf-8").split("\n")[:-1] == wanted
    assert json.loads((here / "results/decode/statistics.json").read_text(encoding="utf-8"))["models"] == 3


def test_a_very_long_source_is_cut_and_named(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(decode, "MOST_INPUT", 5)
    lengths = [len(Subword.load(here / "models/averaged/spm.model").encode(line)) - 1 for line in TEXT]
    assert min(lengths) > 5
    run(params("torch"))
    said = capsys.readouterr().err.splitlines()
    assert said == [f"data/binarized/{split}: sources cut to 5 tokens: 4, the first is line 1" for split in ("valid", "test")]
    statistics = json.loads((here / "results/decode/statistics.json").read_text(encoding="utf-8"))["test"]
    assert (statistics["cut_off"], statistics["target_tokens"]) == (4, 4 * (5 + 3))  # A model that has learnt nothing ends where it must.


def test_with_a_shortlist_the_outputs_are_those_of_a_translator_with_it(here: Path) -> None:
    def hypotheses(shortlist: bool) -> list[str]:
        run(params("torch", shortlist=shortlist))
        return (here / "results/decode/test.hyp").read_text(encoding="utf-8").split("\n")[:-1]

    model = here / "models/averaged"
    subword, usual = Subword.load(model / "spm.model"), hypotheses(shortlist=False)
    used = {token for line in usual for token in subword.encode(line)}
    others = np.array(sorted({PAD, UNK, BOS, EOS, *set(range(VOCAB)) - used}))
    Shortlist(np.zeros(VOCAB + 1, np.int64), np.zeros(0, np.int64), others).save(model / SHORTLIST)
    translated = translations(Translator.load(model, shortlist=True), [*TEXT, ""], Search(4, 0.6, max_extra=3))
    assert hypotheses(shortlist=True) == [found[0].text for found in translated] != usual
