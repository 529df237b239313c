import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import LocalFile, load_entry
from transformer_core.corpus.sources.local_corpus import described, languages_without_spaces, new_entry, update_entry
from transformer_core.corpus.text import normalise, read_lines, read_pairs, write_pairs
from transformer_core.files import sha256_of

Pairs = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with letters.en and letters.de, 40 pairs, in the folder `my`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"my/letters.{language}").write_text("".join(f"{language} {number}\n" for number in range(40)))


ENGLISH, GERMAN = Path("my/letters.en"), Path("my/letters.de")


def lines_of(split: str, language: str = "en") -> list[str]:
    """The held-out sentences of corpus `letters`."""
    return list(read_lines(Path(f"corpora/letters.{split}.{language}")))


def test_a_tenth_is_held_out_but_at_most_a_thousand_or_what_was_asked_for() -> None:
    new_entry("letters", ENGLISH, GERMAN, valid=7, test=9)
    assert (len(lines_of("valid")), len(lines_of("test"))) == (7, 9)
    for pairs, held_out in ((40, 4), (5, 1), (12_000, 1000)):
        for file in (ENGLISH, GERMAN):
            file.write_text("".join(f"{file.suffix} {number}\n" for number in range(pairs)))
        new_entry("letters", ENGLISH, GERMAN)
        assert len(lines_of("valid")) == len(lines_of("test")) == held_out


def test_languages_follow_from_file_names_or_arguments() -> None:
    for file, language in ((ENGLISH, "en"), (GERMAN, "de")):
        Path(f"my/zipped.{language}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert load_entry(new_entry("zipped", Path("my/zipped.en.gz"), Path("my/zipped.de.gz"))).languages == ["en", "de"]
    ENGLISH.rename("my/one.txt")
    assert load_entry(new_entry("said", Path("my/one.txt"), GERMAN, source_language="nl")).languages == ["nl", "de"]


def test_a_first_row_that_may_be_names_of_columns_is_told() -> None:
    rows = "".join(f"a sentence {number}.\tein Satz {number}.\n" for number in range(20))
    for head, told in (("phrase_1\tphrase_2\n", True), ("Go.\tGeh.\n", False), ("", False)):
        Path("table.tsv").write_text(head + rows)
        entry = new_entry("table", Path("table.tsv"), source_language="en", target_language="de")
        assert any("looks like the names of columns" in line for line in described(entry)) == told


def test_the_order_of_files_is_that_of_the_entrys_languages_and_a_wrong_byte_is_no_obstacle() -> None:
    Path("corpora").mkdir()
    GERMAN.write_text("我们明天去公园散步\n" * 40)
    ENGLISH.write_bytes(b"\xff caf\xe9\n" * 40)
    chinese, english = "zh: {path: ../my/letters.de}", "en: {path: ../my/letters.en}"
    entry = Path("corpora/mine.yaml")
    for languages, files, splits in (("en, zh", f"{chinese}, {english}", ("train", "valid", "test")), ("zh", chinese, ("train",))):
        sources = "".join(f"  {split}: [{{files: {{{files}}}}}]\n" for split in splits)
        entry.write_text(f"name: mine\nlanguages: [{languages}]\nlicence:\nnote: ''\nsplits:\n{sources}")
        assert languages_without_spaces(entry) == ["zh"]
        assert list(described(entry))


NINE = b"one\n" * 9
# Files, the arguments of an entry, and the exit code and words of its refusal.
REFUSALS: list[tuple[dict[str, bytes], tuple[str, ...], int, str]] = [
    ({"a.en": NINE, "a.de": NINE[4:]}, ("a", "a.en", "a.de"), 65, r"a\.en: 9 lines, but a\.de has 8"),
    ({"a.en": b"", "a.de": b""}, ("a", "a.en", "a.de"), 65, r"a\.en: empty"),
    ({"a.en": NINE}, ("a", "a.en", "a.de"), 65, r"a\.de: no such file"),
    ({"a.en": b"one\ntwo\n" * 9, "a.de": NINE * 2}, ("a", "a.en", "a.de"), 65, r"a\.en: 2 pairs .* 2 different sentences"),
    ({"a.en": NINE, "a.de": b"\xc2\xa0\n" * 9}, ("a", "a.en", "a.de"), 65, r"a\.en: none of 9 pairs has text in en and de"),
    ({}, ("a", str(ENGLISH), str(ENGLISH)), 78, "both sides are en"),
    *(({}, ("a", name, str(GERMAN)), 78, rf"{name}: .* language.*--source-language") for name in ("one.txt", "train.src", "m.tmx")),
    *(({}, (name, str(ENGLISH), str(GERMAN)), 78, "not a name for a corpus") for name in ("a/b", "", "-x", "..", "two words")),
]


@pytest.mark.parametrize(("files", "arguments", "code", "words"), REFUSALS)
def test_what_is_no_corpus_leaves_no_entry(files: dict[str, bytes], arguments: tuple[str, ...], code: int, words: str) -> None:
    for file, content in files.items():
        Path(file).write_bytes(content)
    name, source, target = arguments
    with refused(code, words):
        new_entry(name, Path(source), Path(target))
    assert not Path("corpora").exists()


def test_validation_and_test_may_be_files() -> None:
    for split in ("dev", "devtest"):
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text(f"{split} in {language}\n")
    valid, test = ((Path(f"{split}.en"), Path(f"{split}.de")) for split in ("dev", "devtest"))
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, valid=valid, test=test))
    for split, sources in (("dev", entry.splits.valid), ("devtest", entry.splits.test)):
        assert (sources[0].files or {})["de"] == LocalFile(path=f"../{split}.de", sha256=sha256_of(Path(f"{split}.de")))
    assert [path.name for path in Path("corpora").iterdir()] == ["letters.yaml"]
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, test=test))
    assert (len(lines_of("valid")), (entry.splits.test[0].files or {})["en"].path) == (4, "../devtest.en")
    Path("dev.de").write_text("")
    with refused(65, r"dev\.en: 1 lines, but dev\.de has 0"):
        new_entry("letters", ENGLISH, GERMAN, valid=valid)


def held_out_of(folder: Path, train: Pairs, name: str, valid: int, test: int) -> dict[str, Pairs]:
    """The held-out pairs of a new corpus."""
    files = folder / "text.en", folder / "text.de"
    write_pairs(*files, train)
    entry = new_entry(name, *files, valid=valid, test=test)
    return {split: list(read_pairs(*(entry.with_name(f"{name}.{split}.{side}") for side in ("en", "de")))) for split in ("valid", "test")}


# Few different sentences, so that many pairs share theirs; a space at an edge makes no other sentence.
sentences = st.sampled_from(["", " ", "a", "a ", "b", "c", "d", "e", "f", "g"])


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=40))
def test_held_out_pairs_have_text_and_different_sources(tmp_path_factory: pytest.TempPathFactory, train: Pairs) -> None:
    folder = tmp_path_factory.mktemp("holdout")
    different = {normalise(source) for source, target in train if source.strip() and target.strip()}
    if len(different) <= 3:
        with refused(65, f"3 pairs are to be held out, but there are {len(different)} diff|none of|sides are equal"):
            held_out_of(folder, train, "few", valid=1, test=2)
        return
    splits = held_out_of(folder, train, "few", valid=1, test=2)
    chosen = [*splits["valid"], *splits["test"]]
    assert (len(splits["valid"]), len(splits["test"])) == (1, 2)
    assert len({normalise(source) for source, _ in chosen}) == 3
    assert all(pair in train and all(map(normalise, pair)) for pair in chosen)


def test_what_is_held_out_depends_on_neither_the_order_of_the_text_nor_the_size_of_valid(tmp_path: Path) -> None:
    numbered = [(f"sentence {number}", f"Satz {number}") for number in range(8_000)]
    forward = held_out_of(tmp_path, [*numbered, *numbered], "forward", valid=20, test=30)
    backward = held_out_of(tmp_path, numbered[::-1], "backward", valid=20, test=30)
    more = held_out_of(tmp_path, numbered, "more", valid=50, test=30)
    assert {split: pairs[::-1] for split, pairs in backward.items()} == forward
    assert forward["test"] == more["test"]
    assert set(forward["valid"]) < set(more["valid"])


def test_an_update_for_changed_files_keeps_the_held_out_pairs_and_the_rest_of_the_entry() -> None:
    path = new_entry("letters", ENGLISH, GERMAN, valid=5, test=10)
    path.write_text(path.read_text().replace("licence:\n", "licence: CC0  # see LICENSE\n"))
    before = lines_of("test"), lines_of("valid", "de")
    for file in (ENGLISH, GERMAN):
        file.write_text("".join(f"{file.suffix[1:]} {number}\n" for number in range(400)))
    sizes = update_entry("letters")
    assert [size.pairs if size else None for size in sizes] == [40, 400]
    assert (lines_of("test"), lines_of("valid", "de")) == before
    assert "licence: CC0  # see LICENSE" in path.read_text()
    entry = load_entry(path)
    assert (entry.splits.train[0].files or {})["en"].sha256 == sha256_of(ENGLISH)
    assert entry.size == sizes[1]
    with path.open("a") as file:
        file.write(f"tests: {{test_b: [{{files: {{en: {{path: ../{ENGLISH}}}, de: {{path: ../{GERMAN}}}}}}}]}}\n")
    update_entry("letters")
    assert (load_entry(path).tests["test_b"][0].files or {})["de"].sha256 == sha256_of(GERMAN)


def test_an_update_checks_the_local_files_beside_other_sources_and_leaves_the_size() -> None:
    path = new_entry("letters", ENGLISH, GERMAN)
    translated = "  - translated: {corpus: news, model: ../teacher, side: source}\n"
    path.write_text(path.read_text().replace("  valid:", f"{translated}  valid:"))
    for file in (ENGLISH, GERMAN):
        file.write_text(file.read_text() + "more\n")
    before, now = update_entry("letters")
    assert (before and before.pairs, now) == (40, None)
    entry, written = load_entry(path), path.read_bytes()
    assert (entry.size, (entry.splits.train[0].files or {})["en"].sha256) == (before, sha256_of(ENGLISH))
    ENGLISH.write_text(ENGLISH.read_text() + "on this side only\n")
    with refused(65, r"my/letters\.en: 42 lines, but my/letters\.de has 41"):
        update_entry("letters")
    assert path.read_bytes() == written
