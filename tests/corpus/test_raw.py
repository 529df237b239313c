from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpora import RawPairs, files_source, reader_of, written_raw
from tests.refusals import refused
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.text import SPLITS, normalise, write_pairs
from transformer_core.files import read_json, sha256_of

Pair = tuple[str, str]
# Few different sentences, so that many pairs share theirs; a space at an edge makes no other sentence.
sentences = st.sampled_from(["", " ", "a", "a ", "b", "c", "d", "e", "f", "g"])
pairs_of_few = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=40)
TRAIN, OTHER = files_source("train"), files_source("other")


def written(folder: Path, train: list[Pair], name: str, valid: int, test: int) -> tuple[Manifest, RawPairs]:
    write_pairs(folder / "train.en", folder / "train.de", train)
    return written_raw(reader_of(folder, TRAIN, valid, test), folder / name)


def test_the_manifest_has_the_files_their_sums_and_their_origins_one_source_after_the_other(tmp_path: Path) -> None:
    for name, pairs in (("train", [("a", "b"), ("c", "d")]), ("other", [("x", "y")])):
        write_pairs(tmp_path / f"{name}.en", tmp_path / f"{name}.de", pairs)
    reader = reader_of(tmp_path, TRAIN, OTHER, OTHER)
    reader.found.entry.splits.train.append(OTHER)
    manifest, splits = written_raw(reader, tmp_path / "raw")
    assert splits == {"train": [("a", "b"), ("c", "d"), ("x", "y")], "valid": [("x", "y")], "test": [("x", "y")]}
    assert Manifest.model_validate(read_json(tmp_path / "raw/manifest.json")) == manifest
    for split, record in manifest.splits.items():
        assert record.pairs == len(splits[split])
        for language, side in record.files.items():
            assert (side.sha256, side.lines) == (sha256_of(tmp_path / f"raw/{split}.{language}"), record.pairs)
    assert manifest.origin[0] == {"split": "train", "file": "train.en", "sha256": sha256_of(tmp_path / "train.en")}
    assert [origin["file"] for origin in manifest.origin if origin["split"] == "train"] == ["train.en", "train.de", "other.en", "other.de"]
    assert (manifest.corpus, manifest.source, manifest.target, manifest.licence) == ("tiny", "en", "de", "CC0")
    assert manifest.held_out == {}


@given(pairs_of_few)
def test_held_out_sentences_are_in_no_other_split(tmp_path_factory: pytest.TempPathFactory, train: list[Pair]) -> None:
    folder = tmp_path_factory.mktemp("holdout")
    different = {normalise(source) for source, target in train if source.strip() and target.strip()}
    if len(different) <= 3:
        with refused(65, f"3 pairs are to be held out, but there are {len(different)} different sentences"):
            written(folder, train, "raw", valid=1, test=2)
        return
    manifest, splits = written(folder, train, "raw", valid=1, test=2)
    sentences_of = {split: {normalise(source) for source, _ in pairs} for split, pairs in splits.items()}
    assert not sentences_of["train"] & (sentences_of["valid"] | sentences_of["test"])
    assert not sentences_of["valid"] & sentences_of["test"]
    assert (len(splits["valid"]), len(splits["test"])) == (1, 2)
    assert all(source.strip() and target.strip() for split in ("valid", "test") for source, target in splits[split])
    held = sentences_of["valid"] | sentences_of["test"]
    assert splits["train"] == [pair for pair in train if normalise(pair[0]) not in held]
    assert manifest.held_out == {"valid": 1, "test": 2, "left_train": len(train) - len(splits["train"])}
    assert manifest.splits["train"].pairs == len(splits["train"])
    assert not list(folder.glob("raw/*.new"))


def test_what_is_held_out_depends_on_neither_the_order_of_the_corpus_nor_the_size_of_valid(tmp_path: Path) -> None:
    numbered = [(f"sentence {number}", f"Satz {number}") for number in range(200)]
    _, forward = written(tmp_path, numbered, "forward", valid=20, test=30)
    _, backward = written(tmp_path, numbered[::-1], "backward", valid=20, test=30)
    for split in SPLITS:
        assert forward[split] == backward[split][::-1]
    _, more = written(tmp_path, numbered, "more", valid=50, test=30)
    assert forward["test"] == more["test"]
    assert set(forward["valid"]) < set(more["valid"])


def test_only_valid_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\nc\n\u200b\ne\ng\ni\nk\n", encoding="utf-8")
    (tmp_path / "train.de").write_bytes(b"b\n\xc2\xa0\nd\n\xfc\n\xff\nj\nl\n")
    (tmp_path / "raw").mkdir()
    write_raw(reader_of(tmp_path, TRAIN), tmp_path / "raw")
    held_out = {(tmp_path / f"raw/{split}.de").read_text(encoding="utf-8") for split in ("valid", "test")}
    assert held_out < {"b\n", "j\n", "l\n"}
    assert len(held_out) == 2


def test_a_split_without_a_pair_is_bad_data(tmp_path: Path) -> None:
    with refused(65, r"tiny\.yaml: splits\.train: holds no sentence pair"):
        written(tmp_path, [], "empty", valid=1, test=1)
