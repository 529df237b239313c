from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import Entry, FoundEntry, LocalFile, Source, Splits
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.text import normalise
from transformer_core.files import read_json, sha256_of

Pair = tuple[str, str]
# Few different sentences, so that many pairs share theirs; a space at an edge makes no other sentence.
sentences = st.sampled_from(["", " ", "a", "a ", "b", "c", "d", "e", "f", "g"])
pairs_of_few = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=40)


def write_side(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def reader_of(folder: Path, train: list[Pair], valid: int | None = 2, test: int | None = 3) -> SourceReader:
    """An entry in `folder` with these training pairs; where no number is held out, a split is the pair x, y."""
    for name, pairs in (("train", train), ("other", [("x", "y")])):
        for side, language in enumerate(("en", "de")):
            write_side(folder / f"{name}.{language}", [pair[side] for pair in pairs])
    files, other = (Source(files={lang: LocalFile(path=f"{name}.{lang}") for lang in ("en", "de")}) for name in ("train", "other"))
    splits = Splits(train=[files], valid=[Source(holdout=valid) if valid else other], test=[Source(holdout=test) if test else other])
    entry = Entry(name="tiny", languages=["en", "de"], licence="CC0", note="", splits=splits)
    return SourceReader(FoundEntry(entry, folder / "tiny.yaml"), "en", "de", Fetcher("tiny", folder / "downloads"))


def written(folder: Path, reader: SourceReader, name: str = "raw") -> tuple[Manifest, dict[str, list[Pair]]]:
    (folder / name).mkdir()
    manifest = write_raw(reader, folder / name)
    sides = {
        split: [(folder / f"{name}/{split}.{language}").read_bytes().decode().split("\n")[:-1] for language in ("en", "de")]
        for split in ("train", "valid", "test")
    }
    return manifest, {split: list(zip(*both, strict=True)) for split, both in sides.items()}


def test_the_manifest_has_the_files_their_sums_and_their_origins(tmp_path: Path) -> None:
    manifest, splits = written(tmp_path, reader_of(tmp_path, [("a", "b"), ("c", "d")], valid=None, test=None))
    assert splits == {"train": [("a", "b"), ("c", "d")], "valid": [("x", "y")], "test": [("x", "y")]}
    assert Manifest.model_validate(read_json(tmp_path / "raw/manifest.json")) == manifest
    assert {split: record.pairs for split, record in manifest.splits.items()} == {"train": 2, "valid": 1, "test": 1}
    for split, record in manifest.splits.items():
        for language, side in record.files.items():
            assert side.sha256 == sha256_of(tmp_path / f"raw/{split}.{language}")
            assert side.lines == len(splits[split])
    assert manifest.origin[0] == {"split": "train", "file": "train.en", "sha256": sha256_of(tmp_path / "train.en")}
    assert (manifest.corpus, manifest.source, manifest.target, manifest.licence) == ("tiny", "en", "de", "CC0")
    assert manifest.held_out == {}


def test_sources_of_a_split_are_read_one_after_the_other(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [("a", "b")], valid=None, test=None)
    splits = reader.found.entry.splits
    splits.train.extend(splits.valid)
    manifest, written_splits = written(tmp_path, reader)
    assert written_splits["train"] == [("a", "b"), ("x", "y")]
    assert [origin["file"] for origin in manifest.origin if origin["split"] == "train"] == ["train.en", "train.de", "other.en", "other.de"]


@settings(deadline=None, max_examples=50)  # each example syncs files to disk
@given(pairs_of_few)
def test_held_out_sentences_are_in_no_other_split(tmp_path_factory: pytest.TempPathFactory, train: list[Pair]) -> None:
    folder = tmp_path_factory.mktemp("holdout")
    different = {normalise(source) for source, target in train if source.strip() and target.strip()}
    reader = reader_of(folder, train, valid=1, test=2)
    if len(different) <= 3:
        with refused(65, f"3 pairs are to be held out, but there are {len(different)} different sentences"):
            written(folder, reader)
        return
    manifest, splits = written(folder, reader)
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


def numbered(count: int) -> list[Pair]:
    return [(f"sentence {number}", f"Satz {number}") for number in range(count)]


def test_what_is_held_out_depends_on_neither_the_order_of_the_corpus_nor_the_size_of_valid(tmp_path: Path) -> None:
    _, forward = written(tmp_path, reader_of(tmp_path, numbered(200), valid=20, test=30), "forward")
    _, backward = written(tmp_path, reader_of(tmp_path, numbered(200)[::-1], valid=20, test=30), "backward")
    for split in ("train", "valid", "test"):
        assert forward[split] == backward[split][::-1]
    _, more = written(tmp_path, reader_of(tmp_path, numbered(200), valid=50, test=30), "more")
    assert forward["test"] == more["test"]
    assert set(forward["valid"]) < set(more["valid"])


def test_only_valid_text_is_held_out(tmp_path: Path) -> None:
    reader = reader_of(
        tmp_path, [("a", "b"), ("c", "\xa0"), ("\u200b", "d"), ("e", "f"), ("g", "h"), ("i", "j"), ("k", "l")], valid=1, test=1
    )
    german = tmp_path / "train.de"
    german.write_bytes(german.read_bytes().replace(b"f", "ü".encode("latin-1")).replace(b"h", b"\xff"))
    (tmp_path / "raw").mkdir()
    write_raw(reader, tmp_path / "raw")
    held_out = {(tmp_path / f"raw/{split}.de").read_text(encoding="utf-8") for split in ("valid", "test")}
    assert held_out < {"b\n", "j\n", "l\n"}
    assert len(held_out) == 2


def test_a_split_without_a_pair_and_unequal_sides_are_bad_data(tmp_path: Path) -> None:
    with refused(65, r"tiny\.yaml: splits\.train: holds no sentence pair"):
        written(tmp_path, reader_of(tmp_path, []), "empty")
    reader = reader_of(tmp_path, numbered(4))
    write_side(tmp_path / "train.de", ["eins", "zwei", "drei"])
    with refused(65, r"train\.en: 4 lines, but .*train\.de has 3"):
        written(tmp_path, reader, "unequal")
