"""Every form of text in docs/data.md: the same corpus gives the same data/raw."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import openpyxl  # type: ignore[import-untyped]
import pyarrow  # type: ignore[import-untyped]
import pytest
from pyarrow import ipc, parquet

from tests.clone import ROOT
from tests.corpus.corpora import archive_bytes
from tests.corpus.test_formats import tmx
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES, FoundEntry, load_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.formats import ARCHIVE, form_of
from transformer_core.corpus.sources.local_corpus import new_entry, update_entry
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.text import read_raw_lines

pytestmark = pytest.mark.usefixtures("empty_directory")
Pairs = list[tuple[str, str]]
# Sentences of Tatoeba, and some that a table must quote, or that only look as if they were quoted.
PAIRS: Pairs = [
    *(tuple(line.decode().split("\t")) for line in islice(read_raw_lines(PACKAGED_ENTRIES / "tatoeba/valid.tsv.xz"), 30)),  # type: ignore[misc]
    ('"Are you sure?" he asked.', '„Bist du sicher?“, fragte er; "ja".'),
    ('"Hello."', "<b>Hallo</b> & {Welt}, 😀"),
]
COLUMNS = {"source": "2", "target": "3"}


def joined(rows: list[Any], ending: str = "\n") -> bytes:
    return "".join("\t".join(row) + ending for row in rows).encode()


def table(rows: list[Any], **settings: Any) -> bytes:
    written = io.StringIO()
    csv.writer(written, **settings).writerows(rows)
    return written.getvalue().encode()


def json_lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet_bytes(rows: list[Any]) -> bytes:
    packed = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), packed)
    return packed.getvalue()


def arrow_bytes(rows: list[Any]) -> bytes:
    """A shard as Hugging Face's `datasets` saves it."""
    packed, content = io.BytesIO(), pyarrow.Table.from_pylist(rows)
    with ipc.new_stream(packed, content.schema) as stream:
        stream.write_table(content, max_chunksize=10)
    return packed.getvalue()


def xlsx(rows: list[Any]) -> bytes:
    packed, book = io.BytesIO(), openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(packed)
    return packed.getvalue()


def of_wrong_size(book: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(book)) as packed:
        parts = {name: re.sub(rb"(?<=<dimension ref=.A1:)\w+", b"A1", packed.read(name)) for name in packed.namelist()}
    return archive_bytes(parts.items(), "zip")


def xliff(pairs: Pairs) -> bytes:
    units = "".join(
        f'<trans-unit id="{number}"><source><g id="1">{escape(en)}</g></source><target>{escape(de)}<bpt id="2">code</bpt></target>'
        "<alt-trans><target>x</target></alt-trans></trans-unit>"
        for number, (en, de) in enumerate(pairs)
    )
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en-US" target-language="de"><body>'
    return f"{head}<group>{units}</group></body></file></xliff>".encode()


def xliff_2(pairs: Pairs) -> bytes:
    unit = "<unit><segment><source>{}</source><target><pc>{}</pc></target></segment></unit>"
    units = "".join(unit.format(escape(en), escape(de)) for en, de in pairs)
    head = '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file>'
    return f"{head}{units}</file></xliff>".encode()


def zstd(content: bytes) -> bytes:
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(content)
    return bytes(packed.getvalue())


def texts(pack: Callable[[bytes], bytes] = bytes, ending: str = "\n", encoding: str = "utf-8", suffix: str = "") -> Any:
    """The files of two texts."""
    sides = zip(("en", "de"), zip(*PAIRS, strict=True), strict=True)
    return {f"t.{language}{suffix}": pack("".join(line + ending for line in side).encode(encoding)) for language, side in sides}


TEXTS = texts()
ENGLISH, GERMAN = TEXTS.values()
NUMBERED = [(str(number), *pair) for number, pair in enumerate(PAIRS)]
WITH_NAMES = [("id", "text_en", "text_de"), *NUMBERED]
MANY_THINGS = {"deu.txt": joined([(*pair, "CC-BY 2.0 (France) Attribution: tatoeba.org") for pair in PAIRS]), "_about.txt": b"about\n"}
MOSES = {"README": b"read\n", "LICENSE": b"terms\n", "Tatoeba.de-en.de": GERMAN, "Tatoeba.de-en.en": ENGLISH, "Tatoeba.de-en.xml": b"<x/>"}
NESTED = [{"id": str(number), "translation": {"en": en, "de": de}} for number, (en, de) in enumerate(PAIRS)]
PARQUET = parquet_bytes(NESTED)
# The first words of a row of the table in docs/data.md, and for each of its forms the files and further arguments of `data new`.
FORMS: dict[str, list[tuple[dict[str, bytes], dict[str, str]]]] = {
    "Two texts": [
        (texts(ending="\r\n", encoding="utf-8-sig"), {}),
        (texts(encoding="utf-16"), {}),
        (texts(gzip.compress, suffix=".gz"), {}),
        (texts(lzma.compress, suffix=".xz"), {}),
        (texts(bz2.compress, suffix=".bz2"), {}),
        (texts(zstd, suffix=".zst"), {}),
        (texts(gzip.compress), {}),
    ],
    "Tab-separated": [
        ({"t.tsv": joined(PAIRS)}, {}),
        ({"t.txt": joined(NUMBERED, "\r\n")}, COLUMNS),
        ({"t.tsv": joined(WITH_NAMES)}, {"target": "text_de"}),
        ({"t.tsv": joined([("2", *pair) for pair in PAIRS])}, COLUMNS),
        ({"t.tsv": table(WITH_NAMES, delimiter="\t", quoting=csv.QUOTE_ALL)}, {}),
        ({"t.tsv": table(PAIRS, delimiter="\t")}, {}),
    ],
    "CSV": [
        ({"t.csv": b"\xef\xbb\xbf" + table(WITH_NAMES)}, {}),
        ({"t.csv": table(WITH_NAMES)}, {"source": "text_en", "target": "text_de"}),
        ({"t.csv": table(NUMBERED, delimiter=";")}, COLUMNS),
        ({"t.csv": b"sep=;\n" + table(PAIRS, delimiter=";")}, {}),
        ({"t.csv": table([("English", "German"), *PAIRS]).decode().encode("utf-16")}, {"source": "1", "target": "2"}),
    ],
    "JSON lines": [
        ({"t.jsonl": json_lines(NESTED)}, {}),
        ({"t.jsonl": json_lines([{"a": en, "b": de} for en, de in PAIRS])}, {"source": "a", "target": "b"}),
    ],
    "Parquet": [({"t.parquet": PARQUET}, {}), ({"t.parquet": PARQUET}, {"source": "translation.en", "target": "translation.de"})],
    "Dataset of Hugging Face": [
        ({"saved/data-0.arrow": arrow_bytes(NESTED[:9]), "saved/data-1.arrow": arrow_bytes(NESTED[9:]), "saved/state.json": b"{}"}, {}),
    ],
    "TMX": [({"t.tmx": tmx(PAIRS)}, {}), ({"t.tmx.gz": gzip.compress(tmx(PAIRS))}, {"source_language": "en_US"})],
    "XLIFF": [
        ({"t.xlf": xliff(PAIRS)}, {}),
        ({"t.xlf": xliff(PAIRS).replace(b' target-language="de"', b"").replace(b"<target", b'<target xml:lang="de"')}, {}),
        ({"t.xliff": xliff_2(PAIRS)}, {}),
    ],
    "Excel": [({"t.xlsx": xlsx(WITH_NAMES)}, {}), ({"t.xlsx": xlsx(PAIRS)}, {}), ({"t.xlsx": of_wrong_size(xlsx(PAIRS))}, {})],
    "Archive": [
        ({"deu-eng.zip": archive_bytes(MANY_THINGS.items(), "zip")}, {"source": "1", "target": "2"}),
        ({"de-en.txt.zip": archive_bytes([*MOSES.items(), ("__MACOSX/._de-en.en", b"\0")], "zip")}, {}),
        ({"de-en.tgz": archive_bytes([*MOSES.items()][2:4], "w:gz")}, {}),
    ],
}  # fmt: skip
CASES = [pytest.param(*case, id=f"{row}-{number}") for row, cases in FORMS.items() for number, case in enumerate(cases)]


def entry_of(files: dict[str, bytes], **settings: str) -> Path:
    """The entry that `data new` writes of one or two files, or of a folder."""
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    named = [Path(name) for name in files if "/" not in name] or [Path(next(iter(files))).parent]
    languages = {} if len(named) == 2 else {"source_language": "en", "target_language": "de"}
    return new_entry("t", *named, **{**languages, **settings})  # type: ignore[arg-type]


def raw_of(entry: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    write_raw(SourceReader(FoundEntry(load_entry(entry), entry), "en", "de", Fetcher("t", Path("downloads"))), folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


@pytest.mark.parametrize(("files", "settings"), CASES)
def test_each_form_gives_the_same_raw_text(files: dict[str, bytes], settings: dict[str, str]) -> None:
    assert raw_of(entry_of(files, **settings), Path("raw")) == raw_of(entry_of(TEXTS), Path("expected"))


def test_the_page_lists_these_forms() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][^|]+) \|", page.partition("### Forms of text")[2].partition("\n#")[0], re.MULTILINE)
    assert rows == [*FORMS]


CSV, LINES, ARROW, BOTH = table(WITH_NAMES), json_lines(NESTED), arrow_bytes(NESTED), ("t.en", "t.de")
# Files, arguments, and the exit code and words of the refusal.
BAD: list[tuple[dict[str, bytes], dict[str, str], int, str]] = [
    ({"t.csv": CSV + b"1,two\n"}, {}, 65, r"t\.csv:34: 2 columns, where the first row has 3\. Put "),
    ({"t.csv": CSV + b'1,"two,drei\nvier'}, {}, 65, r"t\.csv:34: not valid CSV .*\. Double each quote"),
    ({"t.csv": CSV + b"1,tw\xff,drei\n"}, {}, 65, r"t\.csv:pair 33: not valid UTF-8 .*\. Re-encode"),
    ({"t.csv": CSV}, {"source": "texts", "target": "3"}, 65, r"t\.csv:2: no column texts\. There are id \(0\), text_en"),
    ({"t.tsv": joined(NUMBERED)}, {}, 78, r"t\.tsv: which of its columns hold en and de\? There are 1 \(0\), .*\. Set --source"),
    ({"t.tsv": joined(NUMBERED) + b"9\tnine\n"}, COLUMNS, 65, r"t\.tsv:33: no column 3\. There are 1 \(9\), 2 \(nine\)"),
    ({"t.tsv": b"en\tde\ten\n" + joined(NUMBERED)}, {}, 78, r"t\.tsv: which of its columns hold en and de\? There are 1 \(0\), 2"),
    ({"t.tsv": b"one text\n" * 9}, {}, 78, r"t\.tsv: one column, so one language\. Name the file of the other"),
    ({"t.jsonl": LINES + b'{"id": "9"'}, {}, 65, r"t\.jsonl:33: not valid JSON .*\. Write one object a line"),
    ({"t.jsonl": LINES + b'{"translation": {"en": "a"}}\n'}, {}, 65, r"t\.jsonl:33: no column translation\.de\. There"),
    ({"t.jsonl": json_lines([{"a": 1, "b": "eins"}])}, {"source": "a", "target": "b"}, 65, r"t\.jsonl:1: column a is no text, but int"),
    ({"t.json": json.dumps(NESTED).encode()}, {}, 65, r"t\.json: a JSON array\. Write one object a line.*jq"),
    ({"t.parquet": PARQUET[:-9]}, {}, 65, r"t\.parquet: damaged after row 0 .*\. Get it again"),
    ({"t/data.arrow": ARROW[:-99]}, {}, 65, r"t/data\.arrow: damaged after row 30 .*\. Get it again"),
    ({"t/train-0.parquet": PARQUET, "t/test-0.parquet": PARQUET}, {}, 78, r"t: files of several splits: test, train\. Put those"),
    ({"t/README": b"none"}, {}, 78, r"t: a folder without \*\.arrow or \*\.parquet\. Name a file"),
    ({"t.xlsx": xlsx(PAIRS)[:-9]}, {}, 65, r"t\.xlsx: damaged, or neither a tar nor a zip archive\. Get it again"),
    ({"t.xls": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99)}, {}, 65, r"t\.xls: an old Excel file\. Save it as \.xlsx"),
    ({"t.tmx": tmx(PAIRS)}, {"target_language": "fr"}, 65, r"t\.tmx: none of 32 pairs .* in en and fr\. The languages in it are EN-us"),
    ({"t.xlf": xliff(PAIRS)[:-40]}, {}, 65, r"t\.xlf: damaged TMX or XLIFF file .*\. Get it again"),
    ({"t.zip": archive_bytes(MANY_THINGS.items(), "zip")}, {}, 78, r".*/t\.zip/0-deu\.txt: which of its columns hold en and de"),
    ({"t.zip": archive_bytes([("a.txt", ENGLISH), ("b.txt", GERMAN)], "zip")}, {}, 78, r"t\.zip: which of its files\? .*a\.txt, b\.txt"),
    ({"t.tmx": b'<?xml version="1.0" encoding="GBK"?><tmx/>'}, {}, 65, r"t\.tmx: damaged TMX or XLIFF file"),
    ({"t.sgm": b"<seg>eins</seg>"}, {}, 65, r"t\.sgm: SGML is not read\. Name the test set"),
    ({"t.en.gz": gzip.compress(ENGLISH)[:-6], "t.de": GERMAN}, {}, 65, r"t\.en\.gz: damaged gzip file\. Get it again"),
    ({"t.en.xz": b"no xz\n", "t.de": GERMAN}, {}, 65, r"t\.en\.xz: damaged xz file\. Get it again"),
    ({"t.en.zst": zstd(ENGLISH)[:-9], "t.de": GERMAN}, {}, 65, r"t\.en\.zst: damaged zstd file\. Get it again"),
    ({"t.en": "one\n".encode("utf-16") + b"a", "t.de": b"eins\n"}, {}, 65, r"t\.en: not valid UTF-16 .*\. Get it again"),
    ({"t.en": b"caf\xe9\n", "t.de": b"eins\n"}, {}, 65, r"t\.en:1: not valid UTF-8 .*\. Re-encode"),
    (dict.fromkeys(BOTH, CSV), {}, 65, r"t\.en: the sides are equal in each of 33 pairs\. If one file holds both"),
    ({"t.en": joined(NUMBERED), "t.de": joined(NUMBERED[::-1])}, {}, 65, r"t\.en: there are tabs, as in a table, in each of 32 pairs"),
    (dict.fromkeys(BOTH, json_lines([{"a": "one", "b": "eins"}])), {}, 78, r"t\.en: which of its columns hold en\? There are a \(one\)"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "settings", "code", "words"), BAD)
def test_a_damaged_file_is_one_line_with_what_to_do(files: dict[str, bytes], settings: dict[str, str], code: int, words: str) -> None:
    with refused(code, f"^{words}") as caught:
        entry_of(files, **settings)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert not Path("corpora").exists()


def test_columns_that_hold_no_text_make_no_row_of_names() -> None:
    rows = [("en", f"one {number}", "de", f"eins {number}") for number in range(40)]
    columns = {"source": "2", "target": "4", "source_language": "en", "target_language": "de"}
    for head in ([], [("en_id", "source", "de_id", "target")], [("source_lang", "text", "target_lang", "translation")]):
        Path("t.tsv").write_bytes(joined([*head, *rows]))
        size = load_entry(new_entry("t", Path("t.tsv"), valid=4, test=4, **columns)).size  # type: ignore[arg-type]
        assert size
        assert size.pairs == 40


def test_a_name_of_other_letters_makes_no_table_of_an_archive() -> None:
    with tarfile.open("t.tar", "w", format=tarfile.GNU_FORMAT) as tarred:
        tarred.addfile(tarfile.TarInfo("données/c.en"))
    assert form_of(Path("t.tar")) == ARCHIVE


def test_a_region_is_no_part_of_the_language_and_a_column_selects_a_regional_form() -> None:
    unit = "".join(f'<tuv xml:lang="{tag}"><seg>{tag} NUMBER</seg></tuv>' for tag in ("en", "pt-PT", "pt-BR"))
    body = "".join(f"<tu>{unit}</tu>".replace("NUMBER", str(number)) for number in range(9))
    tmx = f"<tmx><body>{body}</body></tmx>".encode()
    for settings, first in (({}, b"pt-PT"), ({"target": "pt_BR"}, b"pt-BR")):
        assert load_entry(entry_of({"t.tmx": tmx}, target_language="pt_BR", **settings)).languages == ["en", "pt"]
        assert next(read_raw_lines(Path("corpora/t.valid.pt"))).startswith(first)


def test_tables_of_validation_have_the_columns_of_the_training_text_and_an_update_keeps_them() -> None:
    Path("v.csv").write_bytes(b"\xef\xbb\xbf" + table(WITH_NAMES[:9]))
    entry = entry_of({"t.csv": table(WITH_NAMES)}, source="text_en", target="3", valid=[Path("v.csv")])  # type: ignore[arg-type]
    before = entry.read_bytes()
    update_entry("t")
    assert entry.read_bytes() == before
    assert raw_of(entry, Path("raw"))["valid.en"] == "".join(f"{en}\n" for en, _ in PAIRS[:8]).encode()
