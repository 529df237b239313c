import gzip
import hashlib
import lzma
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mtdata.entry import Entry as MtdataEntry  # type: ignore[import-untyped]

from tests.corpus.corpora import archive_bytes, files_source, reader_of
from tests.refusals import refused
from transformer_core.corpus.sources.archives import unpack
from transformer_core.corpus.sources.catalogue import Address, Source
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.readers import OpenedSource, SourceReader, _pairs_of_mtdata, located, named_from
from transformer_core.corpus.text import Pair
from transformer_core.tasks import TREES

ENGLISH, GERMAN = b"a house\nthe dog\n", "ein Haus\nder süße Hund\n".encode()
PAIRS = [Pair(b"a house", b"ein Haus"), Pair(b"the dog", "der süße Hund".encode())]


@pytest.fixture
def reader(tmp_path: Path) -> SourceReader:
    """Reads from English to German; the entry lies in `tmp_path`, the mirror in `tmp_path/mirror`."""
    (tmp_path / "mirror/tiny").mkdir(parents=True)
    return reader_of(tmp_path, files_source("t"), mirror=tmp_path / "mirror", pause_seconds=0.01)


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive_of(path: Path, members: dict[str, bytes]) -> None:
    suffix = path.suffix.removeprefix(".").replace("tgz", "gz")
    path.write_bytes(archive_bytes(members.items(), "zip" if suffix == "zip" else f"w:{suffix}"))


def test_a_link_is_named_itself_because_its_suffix_tells_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blob").write_bytes(gzip.compress(ENGLISH))
    (tmp_path / "t.en.gz").symlink_to("blob")
    name = named_from(tmp_path / "corpora", Path("t.en.gz"))
    assert (name, located(tmp_path / "corpora", name)) == ("../t.en.gz", Path("t.en.gz"))


@pytest.mark.parametrize("archive", ["corpus.tgz", "corpus.zip"])
def test_members_of_an_archive_on_the_web_are_read(reader: SourceReader, tmp_path: Path, archive: str) -> None:
    archive_of(tmp_path / f"mirror/tiny/{archive}", {"un/a.en": ENGLISH, "un/a.de.gz": gzip.compress(GERMAN), "../../un/b.de": b"no"})
    url = f"https://invalid./{archive}"
    sides = {"en": Address(url=url, member="*/a.en"), "de": Address(url=url, member="un/a.de*")}
    assert list(reader.open(Source(https=sides)).pairs) == PAIRS
    assert not (tmp_path / "un").exists()


def test_a_damaged_archive_is_bad_data_however_it_is_packed(tmp_path: Path) -> None:
    for mode in ("gz", "bz2", "xz"):
        path = tmp_path / f"a.tar.{mode}"
        archive_of(path, {"a.en": random.Random(1).randbytes(20_000)})
        content = bytearray(path.read_bytes())
        content[9_000:9_200] = bytes(200)
        path.write_bytes(content)
        with refused(65, f"{path}: damaged"):
            unpack(path, ["a.en"], tmp_path)


def test_files_on_the_web_are_taken_in_the_two_languages_asked_for(reader: SourceReader, tmp_path: Path) -> None:
    addresses = {"fr": Address(url="https://invalid./train.fr.gz", sha256="0" * 64)}
    for language, content in (("en", gzip.compress(ENGLISH)), ("de", gzip.compress(GERMAN))):
        (tmp_path / f"mirror/tiny/train.{language}.gz").write_bytes(content)
        addresses[language] = Address(url=f"https://invalid./train.{language}.gz", sha256=sum_of(content))
    opened = reader.open(Source(https=addresses))
    assert list(opened.pairs) == PAIRS
    assert opened.origins == [{"url": addresses[language].url, "sha256": addresses[language].sha256} for language in ("en", "de")]


def test_a_test_set_of_sacrebleu_is_taken_through_the_mirror(reader: SourceReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.dataset import DATASETS
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    archive = tmp_path / "mirror/tiny/tiny.tgz"
    sides = {
        f"t/{language}.sgm": b"".join(b'<seg id="1">%s</seg>\n' % line for line in side.split(b"\n")[:-1])
        for language, side in (("en", ENGLISH), ("de", GERMAN))
    }
    archive_of(archive, sides)
    description = {"md5": [hashlib.md5(archive.read_bytes()).hexdigest()], "langpairs": {"en-de": ["t/en.sgm", "t/de.sgm"]}}
    monkeypatch.setitem(DATASETS, "tiny/set", FakeSGMLDataset("tiny/set", data=["https://invalid./tiny.tgz"], **description))
    opened = reader.open(Source(sacrebleu="tiny/set"))
    assert list(opened.pairs) == PAIRS
    assert opened.origins == [{"sacrebleu": "tiny/set", "url": "https://invalid./tiny.tgz", "sha256": sum_of(archive.read_bytes())}]
    assert list((tmp_path / "downloads").iterdir()) == []
    with refused(78, r"has no direction de-en\. It has en-de"):
        replace(reader, source="de", target="en").open(Source(sacrebleu="tiny/set"))


def test_a_test_set_of_sacrebleu_must_have_its_sum(reader: SourceReader, tmp_path: Path) -> None:
    (tmp_path / "mirror/tiny/test-full.tgz").write_bytes(b"other")
    with refused(65, r"test-full\.tgz: wrong md5: wanted a8cd784e006feb32ac6f3d9ec7eb389a, found"):
        reader.open(Source(sacrebleu="wmt14/full"))


# Without the bytes with which packed files and UTF-16 begin, and without quotes.
cells = st.binary(max_size=9).map(lambda cell: re.sub(rb"[\t\n\x00\x03\x1f\xd0\xff\"BPu]|\r$", b"", cell))


@given(st.lists(st.lists(cells, min_size=3, max_size=3)))
def test_a_table_of_mtdata_is_read_unchanged_by_its_columns(tmp_path_factory: pytest.TempPathFactory, rows: list[list[bytes]]) -> None:
    """Also carriage returns in cells, and invalid UTF-8, which `clean.on_invalid_utf8` must see."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.tsv").write_bytes(b"".join(b"\t".join(row) + b"\r\n" for row in rows))
    entry = MtdataEntry("Group-corpus-1-deu-eng", url="https://invalid./table.tsv", cols=(2, 0))
    pairs = list(_pairs_of_mtdata(entry, True, [folder / "table.tsv"], Fetcher("tiny", folder / "downloads")))
    assert pairs == [Pair(row[0], row[2]) for row in rows]


@pytest.mark.parametrize(("form", "pack"), [("txt", bytes), ("txt.gz", gzip.compress), ("txt.xz", lzma.compress)])
def test_two_texts_of_mtdata_are_read_unchanged(tmp_path: Path, form: str, pack: Callable[[bytes], bytes]) -> None:
    """Also a carriage return in a line, where mtdata's parser would begin another, and invalid UTF-8."""
    sides = [b"one\rline\nb\xff\n", b"eine Zeile\nb\x85\n"]
    files = [tmp_path / f"t.{language}.{form}" for language in ("en", "de")]
    for file, side in zip(files, sides, strict=True):
        file.write_bytes(pack(side))
    entry = MtdataEntry("Group-corpus-1-eng-deu", url=[f"https://invalid./{file.name}" for file in files], ext=form)
    pairs = list(_pairs_of_mtdata(entry, False, files, Fetcher("tiny", tmp_path / "downloads")))
    assert pairs == [Pair(b"one\rline", b"eine Zeile"), Pair(b"b\xff", b"b\x85")]


CORPUS = "Group-corpus-1-eng-deu"
OF_MTDATA = [
    (CORPUS, "t.tsv", "de", 65, r"t\.tsv:2: no column 2"),
    (CORPUS, "t.pdf", "de", 65, r"t\.pdf: mtdata's parser cannot read it"),
    (CORPUS, "t.tsv", "xx", 78, f"mtdata: {CORPUS}: .* languages en and xx"),
    (CORPUS, "t.tsv", "a-b-c-d", 78, f"mtdata: {CORPUS}: .* languages en and a-b-c-d"),
    (CORPUS, "t.tsv", "fr", 78, f"mtdata: {CORPUS}: .* languages en and fr"),
    ("Group-corpsu-1-eng-deu", "t.tsv", "de", 78, f"no such corpus.* {CORPUS}"),
    ("Group-corpus-1-deu", "t.gz", "de", 78, r"mtdata: Group-corpus-1-deu: .* with https: https://invalid\./t\.gz"),
]


@pytest.mark.parametrize(("name", "file", "target", "code", "words"), OF_MTDATA)
def test_what_cannot_be_read_from_mtdata_is_refused(
    reader: SourceReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, target: str, code: int, words: str
) -> None:
    entries = [MtdataEntry(known, url=f"https://invalid./{file}", ext=file[2:]) for known in (CORPUS, "Group-corpus-1-deu")]
    # In place of the index, the making of which takes half a minute.
    monkeypatch.setitem(sys.modules, "mtdata.index", SimpleNamespace(INDEX=SimpleNamespace(get_entries=lambda: entries)))
    (tmp_path / f"mirror/tiny/{file}").write_bytes(b"one\teins\ntwo\n")
    to_target, source = replace(reader, target=target), Source(mtdata=name)
    with refused(code, words):
        list(to_target.open(source).pairs)


MTDATA = """
import sys
from pathlib import Path
from transformer_core.corpus.sources.catalogue import find_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.readers import SourceReader

found = find_entry("wmt14-en-de")
reader = SourceReader(found, "en", "de", Fetcher("wmt14-en-de", Path("downloads"), Path("mirror")))
for source in [*found.entry.splits.train, *found.entry.splits.valid]:
    opened = reader.open(source)
    print(opened.origins[0]["mtdata"], [(pair.source, pair.target) for pair in opened.pairs])
"""


@pytest.mark.slow  # about 30 s: mtdata's first import writes its index
def test_the_corpora_of_wmt14_are_read_by_their_names_in_mtdata(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror/wmt14-en-de"
    mirror.mkdir(parents=True)
    names = []
    for name, archive, english, german in (
        ("europarl_wmt13-7-deu-eng", "training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en.en", "training/europarl-v7.de-en.de"),
        ("commoncrawl_wmt13-1-deu-eng", "training-parallel-commoncrawl.tgz", "commoncrawl.de-en.en", "commoncrawl.de-en.de"),
        ("news_commentary-v9.0-deu-eng", "de-en.txt.zip", "News-Commentary.de-en.en", "News-Commentary.de-en.de"),
        ("newstest-2013-eng-deu", "dev.tgz", "dev/newstest2013.en", "dev/newstest2013.de"),
    ):
        archive_of(mirror / archive, {german: b"eins\xff\nzwei\x85drei\n", english: b"one\ntwo\n"})
        names.append(f"{'OPUS' if archive.endswith('zip') else 'Statmt'}-{name}")
    environment = {**os.environ, "MTDATA": str(tmp_path / "index")}
    done = subprocess.run([sys.executable, "-c", MTDATA], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    pairs = [(b"one", b"eins\xff"), (b"two", b"zwei\x85drei")]
    assert done.stdout.splitlines() == [f"{name} {pairs}" for name in names], done.stderr
    assert list((tmp_path / "downloads").iterdir()) == []


def trees_in(folder: Path, pattern: str) -> OpenedSource:
    source = Source(trees=pattern)
    return reader_of(folder, source, target=TREES).open(source)


def test_files_of_bracketed_trees_are_read_in_order_without_traces_and_functions(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank/2.mrg").write_text("( (S (NP-SBJ (PRP It))\n     (VP (VBZ is) (NP (-NONE- *T*-1)))) )\n\n( (X (-NONE- *)) )\n")
    (tmp_path / "bank/1.mrg.xz").write_bytes(lzma.compress(b"( (NP (NN dog)) )"))
    opened = trees_in(tmp_path, "bank/*.mrg*")
    assert list(opened.pairs) == [Pair(b"dog", b"(NP (NN dog))"), Pair(b"It is", b"(S (NP (PRP It)) (VP (VBZ is)))")]
    assert (opened.origins[0]["trees"], opened.origins[0]["files"]) == ("bank/*.mrg*", "2")


def test_errors_in_trees_name_file_and_line_and_missing_files_have_the_entrys_note(tmp_path: Path) -> None:
    (tmp_path / "bank.mrg").write_text("( (NP (NN dog)) )\n( (NP (NN dog)\n")
    with refused(65, r"bank.mrg:2: 2 brackets are not closed"):
        list(trees_in(tmp_path, "bank.mrg").pairs)
    with refused(65, r"none\*: no such file\. Copy it there\."):
        trees_in(tmp_path, "none*")
