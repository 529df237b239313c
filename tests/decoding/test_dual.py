"""Dual conditional cross-entropy: against its formula by `transformer-core score`'s numbers, and from finished shards."""

from pathlib import Path

import pytest

from tests.models.on_disk import TEXT, write_drawn
from transformer_core.corpus.text import Pair
from transformer_core.decoding import dual_cross_entropy, shards
from transformer_core.decoding.dual_cross_entropy import DualScores
from transformer_core.decoding.scoring import score_tokens
from transformer_core.decoding.shards import Shards
from transformer_core.decoding.translator import load_for_decoding
from transformer_core.errors import UserError
from transformer_core.files import read_json, write_json

PAIRS = [Pair(f"{text}{' dog' * number}", other) for number in range(3) for text in TEXT[:2] for other in TEXT[2:]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with forward/ and backward/."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("forward", "backward")):
        directory = write_drawn(folder / name, seed=seed)
        if name == "backward":
            write_json(directory / "config.json", read_json(directory / "config.json") | {"source": "de", "target": "en"})
    return folder


def entropy(directory: Path, source: str, target: str) -> float:
    model, subword = load_for_decoding(directory)
    (logs,) = score_tokens(model, [subword.encode(source)], [subword.encode(target)], 4096)
    return -sum(logs) / len(logs)


def test_a_score_is_the_difference_of_the_cross_entropies_and_their_mean(models: Path, tmp_path: Path) -> None:
    found = list(DualScores(models, Shards(tmp_path), ("en", "de"))(iter(PAIRS)))
    for pair, score in zip(PAIRS, found, strict=True):
        forward, backward = entropy(models / "forward", *pair), entropy(models / "backward", pair.target, pair.source)
        assert score == pytest.approx(abs(forward - backward) + (forward + backward) / 2, abs=1e-5)


def test_a_pair_that_is_too_long_is_the_worst_and_finished_shards_are_not_scored_again(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_PAIRS_PER_SHARD", 5)
    pairs = [*PAIRS, Pair("the dog " * 400, "der Hund"), Pair("", "der Hund")]
    whole = list(DualScores(models, Shards(tmp_path), ("en", "de"))(iter(pairs)))
    assert whole[-2:] == [float("inf")] * 2
    assert max(whole[:-2]) < float("inf")
    monkeypatch.delattr(dual_cross_entropy, "score_tokens")
    assert list(DualScores(models, Shards(tmp_path), ("en", "de"))(iter(pairs))) == whole


def test_models_in_the_wrong_places_are_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"forward/config.json: translates en to de, and de to en is needed"):
        list(DualScores(models, Shards(tmp_path), ("de", "en"))(iter(PAIRS)))
