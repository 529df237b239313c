"""What stage download writes: splits and their manifest, held-out pairs, and text that a model translates, which is a function here."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpora import RawPairs, files_source, reader_of, written_raw
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import Translated, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file
from transformer_core.corpus.sources.holdout import chosen, sentence_hash
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource, check_tags, registered_models
from transformer_core.corpus.text import SPLITS, Pair, normalise, read_lines, write_lines, write_pairs
from transformer_core.files import read_json, sha256_of

Pairs = list[tuple[str, str]]
# Few different sentences, so that many pairs share theirs; a space at an edge makes no other sentence.
sentences = st.sampled_from(["", " ", "a", "a ", "b", "c", "d", "e", "f", "g"])
pairs_of_few = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=40)
TRAIN, OTHER = files_source("train"), files_source("other")


def written(folder: Path, train: Pairs, name: str, valid: int, test: int) -> tuple[Manifest, RawPairs]:
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
def test_held_out_sentences_are_in_no_other_split(tmp_path_factory: pytest.TempPathFactory, train: Pairs) -> None:
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


PAIRS = [(f"house {number}", f"Haus {number}") for number in range(30)]
NEWS = [f"Nachricht {number}" for number in range(5)]
STUDENT = """
name: student
languages: [en, de]
licence:
note: ""
splits:
  train: [{train}]
  valid: [{{holdout: 2}}]
  test: [{{holdout: 3}}]
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


def shouted(_: Translated, directory: Path, pairs: Iterator[Pair[bytes]]) -> Iterator[Pair[bytes]]:
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


def test_the_target_of_a_student_is_made_by_a_model_without_the_pairs_that_are_held_out() -> None:
    manifest, splits = translated(f"{OWN}, {{translated: {{corpus: own, model: ../teacher, side: target}}}}")
    by_people, by_model = splits["train"][:25], splits["train"][25:]
    assert by_model == [(source, source.upper()) for source, _ in by_people]
    held_out = {source for split in ("valid", "test") for source, _ in splits[split]}
    assert len(held_out) == 5
    assert not held_out & {source for source, _ in splits["train"]}
    assert all(target == dict(PAIRS)[source] for split in ("valid", "test") for source, target in splits[split])
    assert manifest.splits["train"].pairs == 50
    made = manifest.origin[-1]
    assert (made["model"], made["side"], made["corpus"], made["beam"]) == ("../teacher", "target", "own", "4")
    assert len(made["sha256"]) == 64


def test_an_entry_may_translate_its_own_text() -> None:
    _, splits = translated(f"{OWN}, {{translated: {{corpus: student, model: ../teacher, side: target}}}}")
    assert splits["train"][25:] == [(source, source.upper()) for source, _ in splits["train"][:25]]


def test_what_the_other_entry_holds_out_is_not_translated() -> None:
    source = TranslatedSource(Translated(corpus="own", model="../teacher", side="target"), student(OWN))
    texts = [pair.source.decode() for pair in source.open(Teachers(shouted, {})).pairs]
    held_out = chosen({sentence_hash(text.encode()) for text, _ in PAIRS}, {"valid": 2, "test": 3}, {})
    assert texts == [text for text, _ in PAIRS if sentence_hash(text.encode()) not in held_out]
    assert len(texts) == 25


def test_german_text_gets_an_english_side_with_a_tag_before_it() -> None:
    _, splits = translated(f'{OWN}, {{translated: {{corpus: news, model: ../teacher, side: source, tag: "<bt>"}}}}')
    assert splits["train"][25:] == [(f"<bt> {text.upper()}", text) for text in NEWS]


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


def test_model_and_text_are_local_files_of_the_source() -> None:
    source = TranslatedSource(Translated(corpus="own", model="../teacher", side="target"), student(OWN))
    assert source.local_files() == [Path("own.en"), Path("own.de"), Path("teacher/model.safetensors")]
    before = source.local_origins()
    Path("teacher/config.json").write_text("{}")
    after = source.local_origins()
    assert [origin.get("model") for origin in before] == [None, None, "../teacher"]
    assert before[:2] == after[:2]
    assert before[2]["sha256"] != after[2]["sha256"]


def test_a_tag_must_be_a_symbol_of_the_vocabulary() -> None:
    found = student('{translated: {corpus: own, model: ../teacher, side: target, tag: "<ft>"}}').found
    check_tags(found, ["<ft>", "<bt>"])
    with refused(78, r"corpora/student.yaml: translated.tag: <ft> is not in bpe.user_symbols"):
        check_tags(found, ["<bt>"])


def test_the_weights_of_the_pairs_of_train_stay_with_them_when_others_are_held_out() -> None:
    files, news = OWN.removesuffix("}"), "{translated: {corpus: news, model: ../teacher, side: source}}"
    _, splits = translated(f"{files}, weight: 2.5}}, {news}")
    weights = list(read_lines(Path("raw/train.weights")))
    assert weights == ["2.5"] * 25 + ["1"] * 5
    assert len(splits["train"]) == 30
    translated(f"{OWN}, {news}")
    assert not Path("raw/train.weights").exists()
