import gzip
from pathlib import Path

import pytest

from tests.corpus.corpora import written_raw
from tests.corpus.test_formats import tmx
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import LocalFile, find_entry, load_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.holdout import Candidates, chosen, listed_sentences, sentence_hash
from transformer_core.corpus.sources.local_corpus import new_entry, update_entry
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.files import sha256_of


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with letters.en and letters.de, 40 pairs, in the folder `my`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"my/letters.{language}").write_text("".join(f"{language} {number}\n" for number in range(40)))


ENGLISH, GERMAN = Path("my/letters.en"), Path("my/letters.de")


def test_two_files_become_an_entry_that_is_found_by_its_name() -> None:
    path = new_entry("letters", ENGLISH, GERMAN)
    assert path == Path("corpora/letters.yaml")
    entry = find_entry("letters").entry
    assert entry.languages == ["en", "de"]
    files = entry.splits.train[0].files or {}
    for language, file in (("en", ENGLISH), ("de", GERMAN)):
        assert files[language].path == f"../my/letters.{language}"
        assert files[language].sha256 == sha256_of(file)


def test_a_tenth_is_held_out_but_at_most_a_thousand_or_what_was_asked_for() -> None:
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, valid=7, test=9))
    assert (entry.splits.valid[0].holdout, entry.splits.test[0].holdout) == (7, 9)
    for pairs, held_out in ((40, 4), (5, 1), (12_000, 1000)):
        for file in (ENGLISH, GERMAN):
            file.write_text("".join(f"line {number}\n" for number in range(pairs)))
        entry = load_entry(new_entry("letters", ENGLISH, GERMAN))
        assert entry.splits.valid[0].holdout == entry.splits.test[0].holdout == held_out


def test_files_outside_the_working_directory_have_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    entry = load_entry(new_entry("letters", Path("..") / ENGLISH, Path("..") / GERMAN))
    files = entry.splits.train[0].files or {}
    assert files["en"].path == str(tmp_path.resolve() / ENGLISH)


def test_languages_follow_from_file_names_or_arguments() -> None:
    for file, language in ((ENGLISH, "en"), (GERMAN, "de")):
        Path(f"my/zipped.{language}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert load_entry(new_entry("zipped", Path("my/zipped.en.gz"), Path("my/zipped.de.gz"))).languages == ["en", "de"]
    ENGLISH.rename("my/one.txt")
    assert load_entry(new_entry("said", Path("my/one.txt"), GERMAN, source_language="nl")).languages == ["nl", "de"]


NINE = b"one\n" * 9
BOTH = ("t.tsv", "t.tsv", "en", "de")
ROWS = b"".join(b"%d a\tb\n" % number for number in range(9))
# Files, the arguments of an entry, and the exit code and words of its refusal.
REFUSALS: list[tuple[dict[str, bytes], tuple[str, ...], int, str]] = [
    ({"a.en": NINE, "a.de": NINE[4:]}, ("a", "a.en", "a.de"), 65, r"a\.en: 9 lines, but a\.de has 8"),
    ({"a.en": NINE, "a.de": NINE[:16] + b"\xff\n" + NINE[:16]}, ("a", "a.en", "a.de"), 65, r"a\.de:5: not valid UTF-8"),
    ({"a.en": b"", "a.de": b""}, ("a", "a.en", "a.de"), 65, r"a\.en: empty"),
    ({"a.en": NINE}, ("a", "a.en", "a.de"), 65, r"a\.de: no such file"),
    ({"a.en": b"one\ntwo\n" * 9, "a.de": NINE * 2}, ("a", "a.en", "a.de"), 65, r"a\.en: 2 pairs .* 2 different sentences"),
    ({"a.en": NINE, "a.de": b"\xc2\xa0\n" * 9}, ("a", "a.en", "a.de"), 65, r"a\.en: none of 9 pairs has text in en and de"),
    ({"t.tsv": ROWS + b"c\n"}, ("a", *BOTH), 65, r"t\.tsv:10: 1 columns"),
    ({"t.tsv": ROWS + b"c\td\te\n"}, ("a", *BOTH), 65, r"t\.tsv:10: 3 columns"),
    ({"t.tsv": b"1\tone\teins\n" * 9}, ("a", *BOTH), 78, r"t\.tsv: 3 columns.*corpora/README\.md"),
    ({"m.tmx": tmx([("one", "eins")] * 9)}, ("a", "m.tmx", "m.tmx", "en", "ger"), 65, r"m\.tmx: none of 9 pairs .* ger.* EN-us, de"),
    ({}, ("a", str(ENGLISH), str(ENGLISH), "en", "de"), 78, r"my/letters\.en: given for both sides.* \.tmx and \.tsv"),
    ({}, ("a", str(ENGLISH), str(ENGLISH)), 78, "both sides are en"),
    *(({}, ("a", name, str(GERMAN)), 78, rf"{name}: .* language.*--source-language") for name in ("one.txt", "train.src", "m.tmx")),
    *(({}, (name, str(ENGLISH), str(GERMAN)), 78, "not a name for a corpus") for name in ("a/b", "", "-x", "..", "two words")),
]


@pytest.mark.parametrize(("files", "arguments", "code", "words"), REFUSALS)
def test_what_is_no_corpus_leaves_no_entry(files: dict[str, bytes], arguments: tuple[str, ...], code: int, words: str) -> None:
    for file, content in files.items():
        Path(file).write_bytes(content)
    name, source, target, *languages = arguments
    with refused(code, words):
        new_entry(name, Path(source), Path(target), **dict(zip(("source_language", "target_language"), languages, strict=False)))
    assert not Path("corpora").exists()


TEXTS = [(f"{number} dogs", f"{number} Hunde") for number in range(30)]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [("both.tsv", "".join(f"{en}\t{de}\n" for en, de in TEXTS).encode(), [1, 2]), ("both.tmx", tmx(TEXTS), [None, None])],
)
def test_a_table_of_two_columns_or_a_translation_memory_is_both_sides(name: str, content: bytes, columns: list[int | None]) -> None:
    Path(name).write_bytes(content)
    entry = load_entry(new_entry("both", Path(name), Path(name), source_language="en", target_language="de"))
    files = entry.splits.train[0].files or {}
    assert [(language, file.column) for language, file in files.items()] == list(zip(("en", "de"), columns, strict=True))
    assert entry.size is not None
    assert (entry.size.pairs, entry.size.text_bytes) == (30, sum(len(f"{en}\n{de}\n") for en, de in TEXTS))


@pytest.mark.parametrize("columns", [(1, 2), (2, 4)])
def test_an_update_takes_a_table_of_more_columns_with_ragged_rows(columns: tuple[int, int]) -> None:
    """As stage download does."""
    table = Path("rows.tsv")
    table.write_text("".join(f"one {number}\teins {number}\n" for number in range(40)))
    path = new_entry("table", table, table, source_language="en", target_language="de")
    table.write_text("".join(f"one {number}\teins {number}\tun {number}\tuno {number}\tx\n" for number in range(40)) + "a\tb\tc\td\n")
    of_target, of_source = (f"column: {column}\n" for column in reversed(columns))
    path.write_text(path.read_text().replace("column: 2\n", of_target).replace("column: 1\n", of_source))
    assert update_entry("table")[1] is not None


def test_validation_and_test_may_be_files() -> None:
    for split in ("dev", "devtest"):
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text(f"{split} in {language}\n")
    valid, test = ((Path(f"{split}.en"), Path(f"{split}.de")) for split in ("dev", "devtest"))
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, valid=valid, test=test))
    for split, sources in (("dev", entry.splits.valid), ("devtest", entry.splits.test)):
        assert (sources[0].files or {})["de"] == LocalFile(path=f"../{split}.de", sha256=sha256_of(Path(f"{split}.de")))
    assert not Path("corpora/letters.held-out").exists()
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, test=test))
    assert (entry.splits.valid[0].holdout, entry.splits.test[0].kinds) == (4, ["files"])
    Path("dev.de").write_text("")
    with refused(65, r"dev\.en: 1 lines, but dev\.de has 0"):
        new_entry("letters", ENGLISH, GERMAN, valid=valid)


def held_out(name: str, source: str = "en", target: str = "de") -> dict[str, set[str]]:
    """The source sentences that stage download would hold out."""
    reader = SourceReader(find_entry("letters"), source, target, Fetcher("letters", Path("downloads")))
    _, splits = written_raw(reader, Path(name))
    return {split: {sentence for sentence, _ in splits[split]} for split in ("valid", "test")}


def test_an_update_for_changed_files_keeps_the_held_out_pairs_and_the_rest_of_the_entry() -> None:
    path = new_entry("letters", ENGLISH, GERMAN, valid=5, test=10)
    path.write_text(path.read_text().replace("licence:\n", "licence: CC0  # see LICENSE\n"))
    before, reversed_before = held_out("before"), held_out("before-reversed", "de", "en")
    gone = sorted(before["test"])[0]
    for file in (ENGLISH, GERMAN):
        lines = file.read_text().splitlines() + [f"{file.suffix[1:]} {number}" for number in range(40, 400)]
        file.write_text("".join(f"{line}\n" for line in reversed(lines) if line.partition(" ")[2] != gone.partition(" ")[2]))
    sizes = update_entry("letters")
    assert [size.pairs if size else None for size in sizes] == [40, 399]
    now = held_out("now")
    assert now["valid"] == before["valid"]
    assert before["test"] - now["test"] == {gone}
    assert len(now["test"]) == 10
    assert held_out("now-reversed", "de", "en")["valid"] >= reversed_before["valid"]
    assert "licence: CC0  # see LICENSE" in path.read_text()
    entry = load_entry(path)
    assert (entry.splits.train[0].files or {})["en"].sha256 == sha256_of(ENGLISH)
    assert entry.size == sizes[1]
    with path.open("a") as file:
        file.write(f"tests: {{test_b: [{{files: {{en: {{path: ../{ENGLISH}}}, de: {{path: ../{GERMAN}}}}}}}]}}\n")
    update_entry("letters")
    assert (load_entry(path).tests["test_b"][0].files or {})["de"].sha256 == sha256_of(GERMAN)


def test_an_update_for_files_too_small_for_the_held_out_pairs_leaves_entry_and_list_as_they_are() -> None:
    new_entry("letters", ENGLISH, GERMAN, valid=5, test=10)
    written = [Path(f"corpora/letters.{suffix}") for suffix in ("yaml", "held-out")]
    before = [file.read_bytes() for file in written]
    for file in (ENGLISH, GERMAN):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:15]))
    with refused(65, r"my/letters\.en: 15 pairs are to be held out, but there are 15 different sentences with text on both sides"):
        update_entry("letters")
    assert [file.read_bytes() for file in written] == before
    assert sorted(Path("corpora").iterdir()) == sorted(written)


def test_an_update_checks_the_local_files_beside_other_sources_and_leaves_the_size() -> None:
    path = new_entry("letters", ENGLISH, GERMAN)
    listed = listed_sentences(path, "en")
    translated = "  - translated: {corpus: news, model: ../teacher, side: source}\n"
    path.write_text(path.read_text().replace("  valid:", f"{translated}  valid:"))
    for file in (ENGLISH, GERMAN):
        file.write_text(file.read_text() + "more\n")
    Path("corpora/letters.held-out").write_text("{}")
    before, now = update_entry("letters")
    assert (before and before.pairs, now) == (40, None)
    assert [len(digits) for digits in listed_sentences(path, "en").values()] == [len(digits) for digits in listed.values()] == [4, 4]
    entry = load_entry(path)
    assert (entry.size, (entry.splits.train[0].files or {})["en"].sha256) == (before, sha256_of(ENGLISH))
    ENGLISH.write_text(ENGLISH.read_text() + "on this side only\n")
    with refused(65, r"my/letters\.en: 42 lines, but my/letters\.de has 41"):
        update_entry("letters")


def test_few_of_many_sentences_are_remembered_and_the_choice_is_the_same() -> None:
    sentences = [b"%d" % number for number in range(20_000)]
    hashes = [*map(sentence_hash, sentences)]
    listed = {"test": [key.hex()[:16] for key in hashes[:3]], "valid": [hashes[3].hex()[:16]]}
    candidates = Candidates(15, listed)
    for sentence in [*sentences, *sentences]:
        candidates.add(sentence)
    assert len(candidates.hashes) < 1100
    sizes = {"valid": 5, "test": 10}
    assert chosen(candidates.hashes, sizes, listed) == chosen(hashes, sizes, listed)
