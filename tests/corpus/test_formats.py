"""Sentences out of files of each format."""

import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.corpus.sources.formats import Side, file_lines
from transformer_core.corpus.text import read_lines

# What XML can hold, and a line or a cell.
texts = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cn", "Zs", "Zl", "Zp", "Cc"]), max_size=20)


def tmx(units: list[tuple[str, str]]) -> bytes:
    unit = '<tu><tuv xml:lang="EN-us"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    variants = (unit.format(escape(en), escape(de)) for en, de in units)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header/><body>{"".join(variants)}</body></tmx>'.encode()


def test_a_tmx_unit_gives_its_text_without_markup_and_an_empty_line_where_a_language_is_missing(tmp_path: Path) -> None:
    german = '<tu><tuv xml:lang="de-AT"><seg>Ein <hi>fettes</hi>\nWort &amp; mehr</seg></tuv></tu>'
    body = f'<body>{german}<tu><tuv lang="en"><seg>one</seg></tuv></tu></body>'
    (tmp_path / "m.tmx").write_text(f'<tmx xmlns="http://www.lisa.org/tmx14">{body}</tmx>', encoding="utf-8")
    assert list(file_lines(Side(tmp_path / "m.tmx", "de"))) == [b"Ein fettes Wort & mehr", b""]
    assert list(file_lines(Side(tmp_path / "m.tmx", "en"))) == [b"", b"one"]


@given(st.sampled_from(["bpt", "ept", "ph", "it", "ut"]), st.lists(texts, min_size=5, max_size=5))
def test_codes_in_a_tmx_unit_are_no_text_but_their_sub_is(tmp_path_factory: pytest.TempPathFactory, code: str, parts: list[str]) -> None:
    path = tmp_path_factory.mktemp("tmx") / "memory.tmx"
    before, native, inside, more_native, after = map(escape, parts)
    segment = f'{before}<{code} i="1">{native}<sub>{inside}<ph>{native}</ph>{after}</sub>{more_native}</{code}>{after}'
    path.write_text(f'<tmx><body><tu><tuv lang="de"><seg>{segment}</seg></tuv></tu></body></tmx>', encoding="utf-8")
    assert [line.decode() for line in file_lines(Side(path, "de"))] == [parts[0] + parts[2] + parts[4] + parts[4]]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"de-AT": "Jänner", "de": "Januar"}, {"de": "Januar", "de-AT": "Jänner"}),
        ({"pt-BR": "um", "pt_PT": "dois"}, {"pt-BR": "um", "pt": "um", "pt-pt": "dois", "de": ""}),
        ({"zh-Hant-TW": "yi", "zh-Hans-CN": "er"}, {"zh": "yi", "zh-Hans": "er", "zh_hant": "yi", "zh-Hans-CN": "er", "zh-Han": ""}),
    ],
)
def test_a_language_is_found_before_its_regional_forms(texts: dict[str, str], found: dict[str, str], tmp_path: Path) -> None:
    sides = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in texts.items())
    (tmp_path / "m.tmx").write_text(f"<tmx><body><tu>{sides}</tu></body></tmx>", encoding="utf-8")
    for language, text in found.items():
        assert [line.decode() for line in file_lines(Side(tmp_path / "m.tmx", language))] == [text]


def test_a_large_tmx_file_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    peaks = []
    for units in (1_000, 10_000):
        (tmp_path / "m.tmx").write_bytes(tmx([("one sentence", "ein Satz")] * units))
        tracemalloc.start()
        assert sum(1 for _ in file_lines(Side(tmp_path / "m.tmx", "de"))) == units
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A unit that stays costs 90 bytes, 9,000 of them 0.8 MB.
    assert peaks[1] < peaks[0] + 200_000


@pytest.mark.parametrize("text", ["PK is short\n", "eins\r", "a\rb\nc\n", "a\rb\n", "\r"])
def test_a_text_may_begin_as_a_packed_file_does_and_have_carriage_returns_in_its_lines(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.de").write_bytes(text.encode())
    assert "".join(f"{line}\n" for line in read_lines(tmp_path / "t.de")) == text.removesuffix("\n") + "\n"
