"""What stage download writes: splits and their manifest, and text that a model translates, which is a function here."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.corpora import RawPairs, files_source, reader_of, written_raw
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import Translated, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, registered_models
from transformer_core.corpus.text import Pair, read_lines, write_lines, write_pairs
from transformer_core.files import read_json, sha256_of

TRAIN, OTHER = files_source("train"), files_source("other")


def test_the_manifest_has_the_files_their_sums_and_their_origins_one_source_after_the_other(tmp_path: Path) -> None:
    for name, pairs in (("train", [("a", "b"), ("c", "d")]), ("other", [("x", "y")])):
        write_pairs(tmp_path / f"{name}.en", tmp_path / f"{name}.de", pairs)
    reader = reader_of(tmp_path, TRAIN, OTHER)
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


def test_a_split_without_a_pair_is_bad_data(tmp_path: Path) -> None:
    for file in ("train.en", "train.de"):
        (tmp_path / file).touch()
    with refused(65, r"tiny\.yaml: splits\.train: holds no sentence pair"):
        written_raw(reader_of(tmp_path, TRAIN), tmp_path / "raw")


PAIRS = [(f"house {number}", f"Haus {number}") for number in range(30)]
NEWS = [f"Nachricht {number}" for number in range(5)]
STUDENT = """
name: student
languages: [en, de]
licence:
note: ""
splits:
  train: [{train}]
  valid: [{{files: {{en: {{path: own.valid.en}}, de: {{path: own.valid.de}}}}}}]
  test: [{{files: {{en: {{path: own.test.en}}, de: {{path: own.test.de}}}}}}]
"""
MONOLINGUAL = "name: news\nlanguages: [de]\nlicence:\nnote: ''\nsplits:\n  train:\n    - files: {de: {path: ../news.de}}\n"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory: a corpus `own` with held-out pairs, German text `news`, and a folder that stands for a model."""
    monkeypatch.chdir(tmp_path)
    write_pairs(Path("own.en"), Path("own.de"), PAIRS)
    new_entry("own", Path("own.en"), Path("own.de"), valid=2, test=3)
    write_lines(Path("news.de"), NEWS)
    Path("corpora/news.yaml").write_text(MONOLINGUAL)
    Path("teacher").mkdir()
    Path("teacher/model.safetensors").write_bytes(b"weights")


def shouted(_: tuple[str, str], __: Translated, directory: Path, pairs: Iterator[Pair[bytes]]) -> Iterator[Pair[bytes]]:
    """The "model": upper case."""
    assert directory.is_dir()
    return (Pair(pair.source, pair.source.upper()) for pair in pairs)


def student(train: str) -> SourceReader:
    Path("corpora/student.yaml").write_text(STUDENT.format(train=train))
    return SourceReader(find_entry("student"), "en", "de", Fetcher("student", Path("downloads"), lock=lock_file("student")))


def translated(train: str, registered: dict[str, Path] | None = None) -> tuple[Manifest, RawPairs]:
    shutil.rmtree("raw", ignore_errors=True)
    return written_raw(student(train), Path("raw"), Teachers(shouted, registered or {}))


OWN = "{files: {en: {path: ../own.en}, de: {path: ../own.de}}}"


def test_the_target_of_a_student_is_made_by_a_model() -> None:
    manifest, splits = translated(f"{OWN}, {{translated: {{corpus: own, model: ../teacher, side: target}}}}")
    assert splits["train"] == PAIRS + [(source, source.upper()) for source, _ in PAIRS]
    assert all(target == dict(PAIRS)[source] for split in ("valid", "test") for source, target in splits[split])
    assert manifest.splits["train"].pairs == 60
    made = manifest.origin[-1]
    assert (made["model"], made["side"], made["corpus"], made["beam"]) == ("../teacher", "target", "own", "4")
    assert len(made["sha256"]) == 64


def test_an_entry_may_translate_its_own_text() -> None:
    _, splits = translated(f"{OWN}, {{translated: {{corpus: student, model: ../teacher, side: target}}}}")
    assert splits["train"][30:] == [(source, source.upper()) for source, _ in PAIRS]


def test_german_text_gets_an_english_side_with_a_tag_before_it() -> None:
    _, splits = translated(f'{OWN}, {{translated: {{corpus: news, model: ../teacher, side: source}}, tag: "<bt>"}}')
    assert splits["train"][30:] == [(f"<bt> {text.upper()}", text) for text in NEWS]


REFUSALS = [
    ("corpus: nwes, model: ../teacher, side: target", 78, "translated.corpus: no corpus is called 'nwes'. Did you mean news?"),
    ("corpus: news, model: ../teacher, side: target", 78, "translated.corpus: corpora/news.yaml has no language 'en'. It has de."),
    ("corpus: news, model: ../teacher, side: source, pick: nearest", 78, "nearest needs both sides, and corpora/news.yaml has one"),
    ("corpus: own, model: ../teahcer, side: target", 65, "teahcer: no such model directory. corpora/student.yaml names it."),
]


@pytest.mark.parametrize(("source", "code", "words"), REFUSALS)
def test_a_mistake_is_named_before_anything_is_translated(source: str, code: int, words: str) -> None:
    with refused(code, re.escape(words)):
        translated(f"{OWN}, {{translated: {{{source}}}}}")


def test_a_model_of_the_registry_stays_the_one_that_was_used_first() -> None:
    train = f"{OWN}, {{translated: {{corpus: own, model: models:/own@champion, side: target}}}}"
    assert registered_models(student(train).found) == ["models:/own@champion"]
    translated(train, {"models:/own@champion": Path("teacher")})
    translated(train, {"models:/own@champion": Path("teacher")})
    Path("teacher/model.safetensors").write_bytes(b"others")
    with refused(65, r"models:/own@champion: has changed since its first use: .* line from corpora/student.lock"):
        translated(train, {"models:/own@champion": Path("teacher")})


def test_each_pair_of_train_has_the_weight_and_the_name_of_its_source() -> None:
    files, news = OWN.removesuffix("}"), "{translated: {corpus: news, model: ../teacher, side: source}"
    weights, parts = Path("raw/train.weights"), Path("raw/train.parts")
    _, splits = translated(f"{files}, weight: 2.5}}, {news}, name: news}}")
    assert list(read_lines(weights)) == ["2.5"] * 30 + ["1"] * 5
    assert list(read_lines(parts)) == ["other"] * 30 + ["news"] * 5
    assert len(splits["train"]) == 35
    translated(f"{OWN}, {news}}}")
    assert [weights.exists(), parts.exists()] == [False, False]
