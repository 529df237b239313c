"""Stage train as its real process, on data that is made here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from ruamel.yaml import YAML

from transformer_core.config import Bpe
from transformer_core.corpus.binarizing import EncodedPairs, write_split
from transformer_core.corpus.binary import Meta, write_meta
from transformer_core.corpus.subword import Subword, train_subword
from transformer_core.files import write_json

REPOSITORY = Path(__file__).parents[2]
SOURCES = [f"the {noun} sees {number} {noun}s" for noun in ("dog", "horse", "other bird") for number in range(20)]
TARGETS = [f"der {noun} sieht {number} davon" for noun in ("Hund", "Kater", "andere Vogel") for number in range(20)]
SPLIT = {"pairs": 60, "files": {language: {"sha256": "0" * 64, "lines": 60} for language in ("en", "de")}}
MANIFEST = {
    "corpus": "tiny", "source": "en", "target": "de", "licence": None, "synthetic": True, "held_out": {}, "origin": [],
    "splits": {"train": SPLIT, "valid": SPLIT, "test": SPLIT},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(kind: Literal["bpe", "unigram"], **train: object) -> int:
    """Write what stage train finds: 60 pairs in subwords of this kind, and params.yaml; returns the target tokens of an epoch."""
    bpe = Bpe(init_from=None, vocab_size=45, type=kind, character_coverage=1.0, sample=None, seed=1, user_symbols=[])
    train_subword([*SOURCES, *TARGETS], Path("data/bpe/spm.model"), bpe)
    subword = Subword.load(Path("data/bpe/spm.model"))
    pairs = EncodedPairs.of(subword.encode_clean(SOURCES), subword.encode_clean(TARGETS), 1, subword.vocab_size, None)
    splits = {split: write_split(Path("data/binarized") / split, [pairs]) for split in ("train", "valid")}
    meta = Meta(vocabulary_hash=subword.hash, vocab_size=subword.vocab_size, source="en", target="de", splits=splits)
    write_meta(Path("data/binarized"), meta)
    write_json(Path("data/raw/manifest.json"), MANIFEST)
    Path("data/raw/valid.de").write_text("".join(f"{line}\n" for line in TARGETS), encoding="utf-8")
    yaml = YAML(typ="safe", pure=True)
    params = yaml.load(REPOSITORY / "params.yaml")
    # As a subword model that was taken from elsewhere, of which params.yaml does not know the kind.
    params["bpe"] |= {"init_from": "models/parent", "vocab_size": 45}
    params["model"] |= {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2}
    params["train"] |= {"updates": 2, "save_every": 1, "validate_every": 2, "bleu_sentences": 2, **train}
    params["average"]["count"] = 1
    params["machine"] = {"devices": 1, "threads": 1}
    yaml.dump(params, Path("params.yaml"))
    return splits["train"].target_tokens


def run_stage() -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, "-m", "flows.stages.train"], env=environment, capture_output=True, text=True, check=False)


def test_bpe_dropout_without_bpe_is_refused_in_one_line(place: Path) -> None:
    prepare("unigram", bpe_dropout=0.1)
    ended = run_stage()
    assert ended.stderr == (
        "train.bpe_dropout: must be 0 where data/bpe/spm.model is no BPE model, got 0.1. Only BPE has merges to leave out.\n"
    )
    assert (ended.returncode, ended.stdout) == (78, "")
    assert json.loads((place / ".state/exit/train.json").read_text(encoding="utf-8"))["code"] == 78
    assert not (place / "models").exists()


@pytest.mark.slow  # about 10 s: two trainings
def test_bpe_dropout_trains_on_more_tokens_and_leaves_validation_as_it_is(place: Path) -> None:
    """Two updates of all pairs each, at a rate that leaves the weights as they were: what valid has been scored on is the same."""
    found = {}
    for probability in (0, 0.4):
        for made in ("data", "models", "results"):
            shutil.rmtree(place / made, ignore_errors=True)
        plain = prepare("bpe", bpe_dropout=probability, tokens_per_update=10_000, learning_rate=1e-30)
        ended = run_stage()
        assert ended.returncode == 0, ended.stderr
        config = json.loads((place / "models/checkpoints/config.json").read_text(encoding="utf-8"))
        metrics = json.loads((place / "results/training/metrics.json").read_text(encoding="utf-8"))
        found[probability] = config["training"]["target_tokens"] / (2 * plain), metrics["valid_nll"]
    assert found[0][0] == 1
    assert found[0.4][0] > 1.05
    assert found[0][1] == found[0.4][1]
