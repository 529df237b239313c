"""Sources `translated`: whose text is read, in which direction, and what is written. The model is a function here."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.corpora import RawPairs, written_raw
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import Translated, find_entry
from transformer_core.corpus.sources.fetching import Fetcher, lock_file
from transformer_core.corpus.sources.holdout import chosen, sentence_hash
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource, check_tags, registered_models
from transformer_core.corpus.text import Pair, read_lines, write_lines, write_pairs

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
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a corpus `own` with held-out pairs, German text `news`, and a folder that stands for a model."""
    monkeypatch.chdir(tmp_path)
    write_pairs(Path("own.en"), Path("own.de"), PAIRS)
    new_entry("own", Path("own.en"), Path("own.de"), valid=2, test=3)
    write_lines(Path("news.de"), NEWS)
    Path("corpora/news.yaml").write_text(MONOLINGUAL)
    Path("teacher").mkdir()
    Path("teacher/model.safetensors").write_bytes(b"weights")
    return tmp_path


def shouted(_: Translated, directory: Path, pairs: Iterator[Pair[bytes]]) -> Iterator[Pair[bytes]]:
    """The "model": upper case."""
    assert directory.is_dir()
    return (Pair(pair.source, pair.source.upper()) for pair in pairs)


def written(train: str, registered: dict[str, Path] | None = None) -> tuple[Manifest, RawPairs]:
    reader = reader_of(train)
    shutil.rmtree("raw", ignore_errors=True)
    return written_raw(reader, Path("raw"), Teachers(shouted, registered or {}))


def reader_of(train: str) -> SourceReader:
    Path("corpora/student.yaml").write_text(STUDENT.format(train=train))
    return SourceReader(find_entry("student"), "en", "de", Fetcher("student", Path("downloads"), lock=lock_file("student")))


OWN = "{files: {en: {path: ../own.en}, de: {path: ../own.de}}}"


def test_the_target_of_a_student_is_made_by_a_model_without_the_pairs_that_are_held_out() -> None:
    manifest, splits = written(f"{OWN}, {{translated: {{corpus: own, model: ../teacher, side: target}}}}")
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
    _, splits = written(f"{OWN}, {{translated: {{corpus: student, model: ../teacher, side: target}}}}")
    assert splits["train"][25:] == [(source, source.upper()) for source, _ in splits["train"][:25]]


def test_what_the_other_entry_holds_out_is_not_translated() -> None:
    source = TranslatedSource(Translated(corpus="own", model="../teacher", side="target"), reader_of(OWN))
    texts = [pair.source.decode() for pair in source.open(Teachers(shouted, {})).pairs]
    held_out = chosen({sentence_hash(text.encode()) for text, _ in PAIRS}, {"valid": 2, "test": 3}, {})
    assert texts == [text for text, _ in PAIRS if sentence_hash(text.encode()) not in held_out]
    assert len(texts) == 25


def test_german_text_gets_an_english_side_with_a_tag_before_it() -> None:
    _, splits = written(f'{OWN}, {{translated: {{corpus: news, model: ../teacher, side: source, tag: "<bt>"}}}}')
    assert splits["train"][25:] == [(f"<bt> {text.upper()}", text) for text in NEWS]


REFUSALS = [
    ("corpus: nwes, model: ../teacher, side: target", 78, "translated.corpus: no corpus is called 'nwes'. Did you mean news?"),
    ("corpus: news, model: ../teacher, side: target", 78, "translated.corpus: corpora/news.yaml has no language 'en'. It has de."),
    ("corpus: news, model: ../teacher, side: source, pick: nearest", 78, "nearest needs both sides, and corpora/news.yaml has one"),
    ("corpus: own, model: ../teahcer, side: target", 65, "teahcer: no such model directory. corpora/student.yaml names it."),
]


@pytest.mark.parametrize(("translated", "code", "words"), REFUSALS)
def test_a_mistake_is_named_before_anything_is_translated(translated: str, code: int, words: str) -> None:
    with refused(code, re.escape(words)):
        written(f"{OWN}, {{translated: {{{translated}}}}}")


def test_a_model_of_the_registry_stays_the_one_that_was_used_first() -> None:
    train = f"{OWN}, {{translated: {{corpus: own, model: models:/own@champion, side: target}}}}"
    assert registered_models(reader_of(train).found) == ["models:/own@champion"]
    written(train, {"models:/own@champion": Path("teacher")})
    written(train, {"models:/own@champion": Path("teacher")})
    Path("teacher/model.safetensors").write_bytes(b"others")
    with refused(65, r"models:/own@champion: has changed since its first use: .* line from corpora/student.lock"):
        written(train, {"models:/own@champion": Path("teacher")})


def test_model_and_text_are_local_files_of_the_source() -> None:
    source = TranslatedSource(Translated(corpus="own", model="../teacher", side="target"), reader_of(OWN))
    assert source.local_files() == [Path("own.en"), Path("own.de"), Path("teacher/model.safetensors")]
    before = source.local_origins()
    Path("teacher/config.json").write_text("{}")
    after = source.local_origins()
    assert [origin.get("model") for origin in before] == [None, None, "../teacher"]
    assert before[:2] == after[:2]
    assert before[2]["sha256"] != after[2]["sha256"]


def test_a_tag_must_be_a_symbol_of_the_vocabulary() -> None:
    found = reader_of('{translated: {corpus: own, model: ../teacher, side: target, tag: "<ft>"}}').found
    check_tags(found, ["<ft>", "<bt>"])
    with refused(78, r"corpora/student.yaml: translated.tag: <ft> is not in bpe.user_symbols"):
        check_tags(found, ["<bt>"])


def test_the_weights_of_the_pairs_of_train_stay_with_them_when_others_are_held_out() -> None:
    files, news = OWN.removesuffix("}"), "{translated: {corpus: news, model: ../teacher, side: source}}"
    _, splits = written(f"{files}, weight: 2.5}}, {news}")
    weights = list(read_lines(Path("raw/train.weights")))
    assert weights == ["2.5"] * 25 + ["1"] * 5
    assert len(splits["train"]) == 30
    written(f"{OWN}, {news}")
    assert not Path("raw/train.weights").exists()
