"""Stage train, on data that is made here."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from flows.process.paths import CHECKPOINT_SCORES, VALIDATION
from flows.record.recorder import fingerprint_of
from flows.record.run import RunRecord, read_record, records
from flows.stages import train as stage
from tests.corpus.encoded import learnt_subword, write_binarized
from tests.embedding_metric import write_checkpoint
from tests.flows.publishing import MANIFEST
from tests.flows.stages import set_params, stage_here
from tests.models.on_disk import overflowing_in_fp16, with_drawn_norms, write_model
from transformer_core.config import load_params, resolve
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.files import locked, read_json, read_numbers, write_json
from transformer_core.models.architectures import build
from transformer_core.training.checkpoint import FINISHED, STORED, TRAINING_LOCK, keep_finished, state_of

SOURCES = [f"the {noun} sees {number} {noun}s" for noun in ("dog", "horse", "other bird") for number in range(20)]
TARGETS = [f"der {noun} sieht {number} davon" for noun in ("Hund", "Kater", "andere Vogel") for number in range(20)]
LONGEST = 27  # Tokens of a sentence.
SIZES = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2}
LEARNED = SIZES | {"positions": "learned"}
pytestmark = pytest.mark.usefixtures("mlflow_store")  # And the working directory is tmp_path.


def prepare(kind: Literal["bpe", "unigram"], **train: object) -> None:
    """Write the inputs of stage train, 60 pairs in subwords of this kind, and params.yaml."""
    shutil.rmtree("data", ignore_errors=True)
    subword = learnt_subword([*SOURCES, *TARGETS], Path("data/bpe/spm.model"), vocab_size=45, type=kind)
    pairs = subword.encode_clean(SOURCES), subword.encode_clean(TARGETS)
    write_binarized(Path("data/binarized"), *pairs, subword, ("train", "valid"))
    write_json(Path("data/raw/manifest.json"), MANIFEST)
    write_lines(Path("data/raw/valid.de"), TARGETS)
    # As a subword model from elsewhere, whose kind params.yaml does not know.
    bpe = {"init_from": "first", "vocab_size": 45}
    few = {"updates": 2, "save_every": 1, "validate_every": 2, "bleu_sentences": 2, "cooldown": 0, **train}
    set_params(bpe=bpe, model=SIZES, train=few, average={"count": 1}, machine={"devices": 1, "threads": 1})


def recorded() -> list[RunRecord]:
    """The records that are here, the earliest first."""
    found = [record for path in records().glob("*/run.json") if (record := read_record(path.parent.name))]
    return sorted(found, key=lambda record: record.start_ms)


Kind = Literal["bpe", "unigram"]
REFUSED: list[tuple[Kind, dict[str, dict[str, object]], str]] = [
    ("bpe", {"download": {"corpus": "multi30k"}}, "data/raw: holds tatoeba from en to de, but section download names multi30k "),
    ("unigram", {"train": {"bpe_dropout": 0.1}}, "params.yaml: train.bpe_dropout: must be 0 where data/bpe/spm.model is no BPE model"),
    ("bpe", {"train": {"init_from": "frist"}}, "params.yaml: train.init_from: pretrained/frist holds no model.safetensors. "),
    ("bpe", {"model": LEARNED | {"most_positions": LONGEST - 1}}, f"params.yaml: model.most_positions: {LONGEST - 1}, but a sentence of "),
    ("bpe", {"average": {"shortlist": 100}}, "systran-align is not installed. pip install systran-align"),
]


@pytest.mark.parametrize(("kind", "changes", "line"), REFUSED)
def test_settings_that_do_not_fit_the_data_and_a_missing_aligner_are_refused_in_one_line_before_the_training(
    kind: Kind, changes: dict[str, dict[str, object]], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(kind, warmup=1)
    set_params(**changes)
    monkeypatch.setitem(sys.modules, "systran_align", None)
    ended = stage_here("train", code=78)
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    assert ended.stderr.startswith(line)
    assert json.loads((tmp_path / ".state/exit/train.json").read_text(encoding="utf-8"))["code"] == 78
    assert not list(tmp_path.glob("models")) + list(tmp_path.glob(".state/*/state-*.pt"))


def test_a_training_needs_neither_manifest_nor_test_set_and_names_a_long_warm_up_first_and_its_fit_last(tmp_path: Path) -> None:
    """A pull of its dependencies, as by `dvc repro --single-item --pull train` in a fresh clone, does not fetch these."""
    prepare("bpe", warmup=40, validate_every=1)
    assert not Path("data/binarized/test").exists()
    assert open_split(Path("data/binarized/train")).longest == LONGEST
    set_params(model=LEARNED | {"most_positions": LONGEST})
    (tmp_path / "data/raw/manifest.json").unlink()
    trained = stage_here("train", code=0)
    (record,) = recorded()
    assert "manifest.json" not in record.artifacts
    starts = [line.split(" ")[0] for line in trained.stderr.splitlines()]
    assert starts.index("train.warmup:") < starts.index("training")
    assert starts[-2:] == ["Perplexity", "The"]  # The second line: the model hardly reads its source.


def test_comet_selects_the_best_checkpoints_and_ends_a_training_that_does_not_gain(tmp_path: Path) -> None:
    comet = write_checkpoint(tmp_path / "metric.pt")
    prepare("bpe", updates=4, validate_every=1, bleu_sentences=5, comet=comet, best_by="comet", patience=1, learning_rate_factor=1e-9)
    stage_here("train", code=0)
    rows = read_numbers(VALIDATION)
    assert [row["update"] for row in rows] == [1, 2]  # Of outputs that do not change only the first are better than none.
    kept = read_json(CHECKPOINT_SCORES)
    assert kept["best_by"] == "comet"
    assert kept["scores"] == pytest.approx({"1": rows[0]["comet"], "2": rows[1]["comet"]}, abs=1e-3)


def test_a_stopped_training_goes_on_with_another_end_and_says_when_it_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("bpe")
    stage_here("train", code=0)
    prepare("bpe", updates=3, patience=9, keep=3)
    with monkeypatch.context() as patch:
        patch.setattr(stage, "_write_outputs", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert "going on after update 2" in stage_here("train", code=75).stderr
    (state,) = tmp_path.glob(".state/*/state-00000003.pt")
    keep_finished(fingerprint_of(load_params()))
    assert state.exists()  # It had finished after update 2, but now it is a stopped training.
    prepare("bpe", updates=4, patience=9, keep=3)
    longer = stage_here("train")
    assert "going on after update 3" in longer.stderr
    assert "update 4 of 4" in longer.stderr
    weights = (tmp_path / "models/checkpoints/update-00000004.safetensors").read_bytes()
    prepare("bpe", updates=3)
    shorter = stage_here("train", code=78)
    assert "train.updates: 3, but this training is saved after update 4. Raise it, or start anew" in shorter.stderr
    assert list(tmp_path.glob(f".state/*/{FINISHED}"))  # A refused one changes nothing.
    shutil.rmtree(".state")
    prepare("bpe", updates=4)
    stage_here("train", code=0)
    assert (tmp_path / "models/checkpoints/update-00000004.safetensors").read_bytes() == weights
    prepare("bpe", updates=4, warmup=77)
    stage_here("train", code=0)
    with locked(state_of(fingerprint_of(load_params())) / TRAINING_LOCK, "this training"):
        keep_finished(fingerprint_of(load_params()))  # Another clone trains it to a later end.
        stage_here("train", code=69)
    assert len(list(tmp_path.glob(f".state/*/{FINISHED}"))) == 2


def test_a_training_starts_from_the_weights_of_a_model_of_the_same_sizes_and_vocabulary() -> None:
    """At a rate too low to change a weight that is not zero."""
    prepare("bpe", init_from="first", warmup=1, learning_rate_factor=1e-30)
    start = with_drawn_norms(build(resolve(load_params().model), 45))
    first = write_model(start, Path("pretrained/first"), [*SOURCES, *TARGETS])
    config = read_json(first / "config.json")
    # The same sizes in other words: without learned positions their number has no effect.
    written = {"layers": 9, "encoder_layers": 1, "decoder_layers": 1, "most_positions": 9, "dropout": 0.5, "relu_dropout": 0.5}
    write_json(first / "config.json", {**config, "model": {**config["model"], **written}})
    stage_here("train", code=0)
    weights = load_file("models/checkpoints/update-00000002.safetensors")
    assert weights.keys() == start.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in start.state_dict().items())
    set_params(model={"layers": 2})
    other = shutil.copytree(first, Path("pretrained/other"))
    write_json(other / "config.json", {**config, "vocabulary": {**config["vocabulary"], "hash": "0" * 64}})
    for parent, fault in (
        ("first", "has other sizes than section model. It has layers 1 instead of 2, encoder_layers 1 instead of 2, decoder"),
        ("other", "has vocabulary 000000000000, the data "),
    ):
        set_params(train={"init_from": parent})
        ended = stage_here("train", code=78)
        assert ended.stderr.startswith(f"params.yaml: train.init_from: pretrained/{parent} {fault}")
        assert ended.stderr.count("\n") == 1
    set_params(bpe={"init_from": None}, model={"layers": 1})  # Of another vocabulary it takes the subwords that both have.
    assert "pretrained/other: 45 of 45 subwords are in its vocabulary" in stage_here("train").stderr


def test_a_model_records_the_length_of_its_sources_without_the_longest_in_a_thousand() -> None:
    """A few long lines do not teach a model to translate paragraphs, which it would shorten."""
    prepare("bpe")
    subword = Subword.load(Path("data/bpe/spm.model"))
    shutil.rmtree("data/binarized/train")
    sides = ([*lines * 20, " ".join(lines[:3])] for lines in (SOURCES, TARGETS))
    write_binarized(Path("data/binarized"), *map(subword.encode_clean, sides), subword)
    stage_here("train", code=0)
    longest = max(len(tokens) for tokens in subword.encode_clean(SOURCES)) - 1
    assert read_json(Path("models/checkpoints/config.json"))["longest_source"] == longest


def test_a_validation_whose_logits_are_not_finite_does_not_end_the_training(tmp_path: Path) -> None:
    """Its outputs count as empty. Both updates are skipped, too."""
    prepare("bpe", init_from="large", precision="fp16")
    set_params(model={"norm": "pre"})
    write_model(overflowing_in_fp16(build(resolve(load_params().model), 45)), Path("pretrained/large"), [*SOURCES, *TARGETS])
    assert "update 2: valid PPL nan, BLEU 0.0 (greedy, 2 sentences)" in stage_here("train", code=0).stderr
    assert (tmp_path / "models/checkpoints/update-00000002.safetensors").exists()


@pytest.mark.parametrize("fails", ["Translator.translate_tokens", "make_batch"])
def test_a_validation_that_does_not_fit_the_memory_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """The greedy outputs, or the teacher-forced scores."""
    prepare("bpe")
    monkeypatch.setattr(f"transformer_core.training.validation.{fails}", Mock(side_effect=MemoryError))
    ended = stage_here("train", code=78)
    said = "a validation does not fit the memory of this cpu beside micro-batches of 320 tokens. Lower train.tokens_per_microbatch"
    assert ended.stderr.splitlines()[-1].startswith(said)
    assert not list(tmp_path.glob(".state/*/state-*.pt"))


def test_a_stop_after_the_last_update_loses_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC takes no outputs of a stage that was stopped, and removes them before it runs it again."""
    prepare("bpe")
    with monkeypatch.context() as patch:
        write_outputs = stage._write_outputs
        patch.setattr(stage, "_write_outputs", lambda *given: (write_outputs(*given), os.kill(os.getpid(), signal.SIGTERM)))
        ended = stage_here("train", code=75)
    assert ended.stderr.endswith("training stopped after its last update, state saved. Run it again to resume.\n")
    weights = tmp_path / "models/checkpoints/update-00000002.safetensors"
    written = weights.read_bytes()
    for made in ("models", "results"):
        shutil.rmtree(made)
    assert "going on after update 2" in stage_here("train", code=0).stderr
    assert weights.read_bytes() == written
    assert json.loads(Path("results/training/metrics.json").read_text(encoding="utf-8"))["updates"] == 2
    (record,) = recorded()
    assert read_json(tmp_path / "models/checkpoints/config.json")["training"]["run"] == record.id
    assert [step for step, _, _ in record.rows(next(record.tables()), set())] == [2]
    assert "training/updates.csv" in record.artifacts


def test_a_training_whose_states_are_all_damaged_begins_anew_with_its_own_checkpoints(tmp_path: Path) -> None:
    prepare("bpe")
    stage_here("train", code=0)
    for state in Path(".state").glob("*/state-*.pt"):
        state.write_bytes(b"")
        (state.parent / "finished").unlink(missing_ok=True)
        (state.parent / "checkpoints/update-00000009.safetensors").write_bytes(b"")  # Of an earlier training that was longer.
    assert "going on" not in stage_here("train").stderr
    assert [record.status for record in recorded()] == ["FINISHED"]
    assert "update-00000009.safetensors" not in {path.name for path in (tmp_path / "models/checkpoints").iterdir()}


def test_a_stored_training_goes_on_to_a_later_end_and_starts_anew_for_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(updates: int, **changes: object) -> tuple[bool, bytes]:
        """Train and average; whether the training went on, and its last checkpoint."""
        prepare("bpe", updates=updates, validate_every=1, **changes)
        ended = stage_here("train", code=0)
        stage_here("average", code=0)
        return "going on after update 2" in ended.stderr, (tmp_path / f"models/checkpoints/update-{updates:08}.safetensors").read_bytes()

    straight = trained(3)[1]
    assert trained(2)[0] is False  # Earlier.
    assert trained(3) == (True, straight)
    assert trained(2, patience=9)[0] is False
    assert trained(2, patience=9)[0] is False  # The same again.
    assert trained(2, patience=0)[0] is True  # No patience is the longest.
    went_on, other = trained(3, warmup=77)
    assert not went_on
    assert len(list(tmp_path.glob(f".state/*/{STORED}"))) == 1  # The one before it is removed.
    monkeypatch.setenv("TRANSFORMER_STATE", "shared")  # Of several clones, perhaps.
    assert trained(2)[0] is False
    assert trained(3) == (True, other)
    assert trained(3, warmup=78)[0] is False
    assert len(list(tmp_path.glob(f"shared/*/{STORED}"))) == 1
