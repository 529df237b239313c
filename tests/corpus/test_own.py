import gzip
from pathlib import Path

import pytest

from transformer_core.corpus.sources.catalogue import find_entry, load_entry
from transformer_core.corpus.sources.own import new_entry
from transformer_core.errors import ExitCode, UserError
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
    assert not entry.synthetic


def test_a_tenth_is_held_out_but_at_most_a_thousand_or_what_was_asked_for() -> None:
    entry = load_entry(new_entry("letters", ENGLISH, GERMAN, valid_lines=7, test_lines=9))
    assert (entry.splits.valid[0].holdout, entry.splits.test[0].holdout) == (7, 9)
    for pairs, held_out in ((40, 4), (5, 1), (12_000, 1000)):
        for file in (ENGLISH, GERMAN):
            file.write_text("line\n" * pairs)
        entry = load_entry(new_entry("letters", ENGLISH, GERMAN, force=True))
        assert entry.splits.valid[0].holdout == entry.splits.test[0].holdout == held_out


def test_files_outside_the_working_directory_are_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    entry = load_entry(new_entry("letters", Path("..") / ENGLISH, Path("..") / GERMAN))
    files = entry.splits.train[0].files or {}
    assert files["en"].path == str(tmp_path.resolve() / ENGLISH)


def test_languages_are_taken_from_the_names_or_said() -> None:
    for file, language in ((ENGLISH, "en"), (GERMAN, "de")):
        Path(f"my/zipped.{language}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert load_entry(new_entry("zipped", Path("my/zipped.en.gz"), Path("my/zipped.de.gz"))).languages == ["en", "de"]
    ENGLISH.rename("my/one.txt")
    assert load_entry(new_entry("said", Path("my/one.txt"), GERMAN, source_language="nl")).languages == ["nl", "de"]
    with pytest.raises(UserError, match=r"my/one\.txt: its name does not end in a language\. .*--source-language") as caught:
        new_entry("other", Path("my/one.txt"), GERMAN)
    assert caught.value.exit_code is ExitCode.BAD_CONFIGURATION


def test_an_entry_is_not_written_over_without_force() -> None:
    new_entry("letters", ENGLISH, GERMAN)
    with pytest.raises(UserError, match=r"corpora/letters\.yaml: there is a corpus letters already") as caught:
        new_entry("letters", ENGLISH, GERMAN, valid_lines=9)
    assert caught.value.exit_code is ExitCode.BAD_CONFIGURATION
    assert load_entry(new_entry("letters", ENGLISH, GERMAN, valid_lines=9, force=True)).splits.valid[0].holdout == 9
    with pytest.raises(UserError, match="there is a corpus multi30k already"):
        new_entry("multi30k", ENGLISH, GERMAN)


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [
        (b"one\n" * 9, b"eins\n" * 8, r"my/letters\.en: 9 lines, but my/letters\.de has 8"),
        (b"one\n" * 9, b"eins\n" * 4 + b"\xff\n" + b"sechs\n" * 4, r"my/letters\.de:5: not valid UTF-8"),
        (b"", b"", r"my/letters\.en: empty"),
        (b"one\n", None, r"my/letters\.de: no such file"),
        (b"one\n" * 2, b"eins\n" * 2, r"my/letters\.en: 2 pairs, of which 2 are to be held out"),
    ],
)
def test_files_that_will_not_do_are_bad_data_and_leave_no_entry(english: bytes, german: bytes | None, message: str) -> None:
    ENGLISH.write_bytes(english)
    GERMAN.unlink()
    if german is not None:
        GERMAN.write_bytes(german)
    with pytest.raises(UserError, match=message) as caught:
        new_entry("letters", ENGLISH, GERMAN)
    assert caught.value.exit_code is ExitCode.BAD_DATA
    assert not Path("corpora").exists()


def test_names_that_are_no_file_names_and_sides_in_one_language_are_refused() -> None:
    for name in ("a/b", "", "-x", "..", "two words"):
        with pytest.raises(UserError, match="not a name for a corpus"):
            new_entry(name, ENGLISH, GERMAN)
    with pytest.raises(UserError, match="both sides are en"):
        new_entry("letters", ENGLISH, ENGLISH)


def test_a_translation_memory_is_both_sides() -> None:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{n} dogs</seg></tuv><tuv xml:lang="de"><seg>{n} Hunde</seg></tuv></tu>' for n in range(30)
    )
    memory = Path("memory.tmx")
    memory.write_text(f"<tmx><body>{units}</body></tmx>", encoding="utf-8")
    with pytest.raises(UserError, match="its name does not end in a language"):
        new_entry("memory", memory, memory)
    entry = load_entry(new_entry("memory", memory, memory, source_language="en", target_language="de"))
    assert entry.size is not None
    assert (entry.size.pairs, entry.size.text_bytes) == (30, sum(len(f"{n} dogs\n{n} Hunde\n") for n in range(30)))
