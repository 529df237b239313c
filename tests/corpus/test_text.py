import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_core.corpus import text
from transformer_core.corpus.text import normalise, read_chunks, read_lines, read_pairs, write_lines, write_pairs
from transformer_core.errors import UserError

# Characters that tools take for line ends or that vanish, far more often than chance would bring them.
awkward = st.text(alphabet="\t\r\v\f\x00\x1c\x85\xa0\u2028\u2029\u200b\u200d\ufeff\u00ad\u2000\u0301\u0323eE aß\u212b")


@example(["a\x85b\u2028c\r", "d\x1ce", "two"])
@given(st.lists(awkward.map(lambda text: text.replace("\n", "")) | st.text().map(lambda text: text.replace("\n", ""))))
def test_lines_are_read_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    path = tmp_path_factory.mktemp("text") / "corpus.en"
    write_lines(path, written)
    assert list(read_lines(path)) == written
    assert path.read_bytes().count(b"\n") == len(written)


@pytest.mark.parametrize(("source", "target"), [("a\nb\nc\n", "x\n"), ("a\n", "x\ny\nz\n")])
def test_unequal_sides_are_told_with_both_counts(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "t.en").write_text(source)
    (tmp_path / "t.de").write_text(target)
    counts = rf"t\.en: {source.count(chr(10))} lines, but .*t\.de has {target.count(chr(10))}\."
    for read in (read_pairs, read_chunks):
        with pytest.raises(UserError, match=counts):
            list(read(tmp_path / "t.en", tmp_path / "t.de"))


def test_pairs_are_read_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PAIRS_PER_CHUNK", 2)
    paths, pairs = (tmp_path / "t.en", tmp_path / "t.de"), [("a house", "ein Haus"), ("", "\x85"), ("tree", "Baum\r")]
    write_pairs(*paths, pairs)
    assert list(read_pairs(*paths)) == pairs
    chunks = list(read_chunks(*paths))
    assert [chunk.first for chunk in chunks] == [1, 3]
    assert [(*map(bytes.decode, pair),) for chunk in chunks for pair in zip(chunk.source, chunk.target, strict=True)] == pairs


def test_a_line_that_would_be_read_back_as_two_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "corpus.en"
    with pytest.raises(ValueError, match="line feed"):
        write_lines(path, ["fine", "not\nfine"])
    assert list(tmp_path.iterdir()) == []


@given(st.text() | awkward)
def test_a_normalised_text_stays_as_it_is_and_has_one_form_single_spaces_and_no_controls(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())
    assert not any(unicodedata.category(character) == "Cc" for character in once)
    assert not set(once) & set("\u200b\ufeff\u00ad\u2060")


def test_normalising_repairs() -> None:
    repairs = {
        "e\u200b\u0301te\u0301": "été",
        "one\ttwo\x0bthree\u2028four": "one two three four",
        " \u00a0edge\u3000": "edge",
        "Donau\u00addampf": "Donaudampf",
        "\ufeffFirst": "First",
        "\u0627\u061c.": "\u0627.",
        "und so weiter\x85": "und so weiter…",
        "bell\x07 and \x93quote\x94": "bell and “quote”",
        "\u0645\u06cc\u200c\u062e": "\u0645\u06cc\u200c\u062e",
    }
    assert {raw: normalise(raw) for raw in repairs} == repairs
