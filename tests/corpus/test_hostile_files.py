"""Archives, packed files, entries and addresses that somebody made to do harm."""

import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus.corpora import archive_bytes
from tests.corpus.test_forms import parquet_bytes
from tests.refusals import refused
from transformer_core import compressed
from transformer_core.config import load_params
from transformer_core.corpus.sources.archives import unpack
from transformer_core.corpus.sources.catalogue import Entry, find_entry, load_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.formats import Side, file_lines
from transformer_core.errors import UserError
from transformer_core.schema import validate_document
from transformer_core.yaml_io import parse_yaml, read_yaml

TEXT = b"ein Haus\n"
ZEROS = bytes(1 << 20)


def tar_of(path: Path, members: list[tarfile.TarInfo]) -> None:
    with tarfile.open(path, "w") as tarred:
        for member in members:
            tarred.addfile(member, io.BytesIO(TEXT[: member.size]) if member.isfile() else None)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, len(TEXT) if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE], ids=repr
)
def test_a_link_or_device_in_an_archive_is_no_member(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret").write_bytes(b"secret\n")
    tar_of(tmp_path / "a.tar", [member("t.en", kind, "../secret")])
    folder = tmp_path / "inside"
    folder.mkdir()
    with pytest.raises(UserError, match=r"0 files in it match t\.en"):
        unpack(tmp_path / "a.tar", ["t.en"], folder)
    assert list(folder.iterdir()) == []


def test_a_file_behind_a_link_of_the_same_archive_stays_in_its_folder(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", [member("out", tarfile.SYMTYPE, ".."), member("out/t.en")])
    folder = tmp_path / "inside"
    folder.mkdir()
    (path,) = unpack(tmp_path / "a.tar", ["out/t.en"], folder)
    assert (path.parent, path.read_bytes()) == (folder, TEXT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "inside"]


@pytest.mark.parametrize(("kind", "link"), [(tarfile.DIRTYPE, ""), (tarfile.SYMTYPE, "secret.en")])
def test_a_later_member_of_the_same_name_is_not_taken_for_the_file(tmp_path: Path, kind: bytes, link: str) -> None:
    secret = member("secret.en")
    secret.size = 3
    tar_of(tmp_path / "a.tar", [secret, member("t.en"), member("t.en", kind, link)])
    (path,) = unpack(tmp_path / "a.tar", ["t.en"], tmp_path)
    assert path.read_bytes() == TEXT


def test_a_link_or_folder_in_a_zip_archive_is_no_member(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for name, kind in (("a/", stat.S_IFDIR), ("a/link.en", stat.S_IFLNK), ("a/device.en", stat.S_IFCHR), ("a/t.en", stat.S_IFREG)):
            made = zipfile.ZipInfo(name)
            made.external_attr = (kind | 0o644) << 16
            zipped.writestr(made, b"" if name == "a/" else TEXT)
    (path,) = unpack(tmp_path / "a.zip", ["a/*"], tmp_path)
    assert path.name == "0-t.en"


def stated(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar archive whose only member says that it has this size, and has 1 MB."""
    head = tarfile.TarInfo(name)
    head.size, head.type = size, kind
    return head.tobuf(tarfile.GNU_FORMAT) + ZEROS


ZIPPED = bytearray(archive_bytes([("t.en", ZEROS * 8)], "zip"))
# Of the members' sizes, the directory states a smaller one than the true one: only so much is unpacked, and then the sum is wrong.
LYING = bytearray(ZIPPED)
struct.pack_into("<I", LYING, LYING.rindex(b"PK\x01\x02") + 24, 10)
SIZE = r"unpacks to more than [\d,]+ bytes, 100 times its size and 1,048,576 more"
# 8 MB without a line feed in 8 kB, or in 2: a reader that holds a line would hold it all. tarfile reads a member's name, too, into memory.
BOMBS = {
    "t.de.gz": (gzip.compress(ZEROS * 8), SIZE),
    "t.de.xz": (lzma.compress(ZEROS * 8), SIZE),
    "t.tmx.gz": (gzip.compress(ZEROS * 8), f"{SIZE}|damaged TMX"),
    "t.parquet": (parquet_bytes([{"de": "a" * 9_000}] * 2_000), SIZE),
    "large.tar.gz": (gzip.compress(stated("t.en", 1 << 40)), SIZE),
    "large.tar.xz": (lzma.compress(stated("t.en", 1 << 40)), SIZE),
    "named.tgz": (gzip.compress(stated("././@LongLink", len(ZEROS) * 8, tarfile.GNUTYPE_LONGNAME) + ZEROS * 7), SIZE),
    "large.zip": (bytes(ZIPPED), SIZE),
    "lying.zip": (bytes(LYING), "damaged"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_packed_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A packed file may become 1 MB larger, beside 100 times its size; so the bombs can be small."""
    monkeypatch.setattr(compressed, "ALLOWED_BYTES", 1 << 20)
    content, words = BOMBS[name]
    (tmp_path / name).write_bytes(content)
    assert len(content) < 20_000
    with refused(65, words):
        if name.startswith("t."):
            list(file_lines(Side(tmp_path / name, "de")))
        unpack(tmp_path / name, ["t.en"], tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < len(ZEROS)


def test_an_encrypted_archive_is_named(tmp_path: Path) -> None:
    content = bytearray(archive_bytes([("t.en", TEXT)], "zip"))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + place] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be unpacked .*encrypted"):
        unpack(tmp_path / "a.zip", ["t.en"], tmp_path)


def test_entities_in_a_translation_memory_do_not_multiply(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY a{level} "{f"&a{level - 1};" * 10}">' for level in range(1, 10))
    head = f'<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a0 "lol">{entities}<!ENTITY file SYSTEM "file:///etc/hostname">]>'
    for name in ("a9", "file"):
        body = f'<tmx><body><tu><tuv xml:lang="de"><seg>&{name};</seg></tuv></tu></body></tmx>'
        (tmp_path / "t.tmx").write_text(head + body, encoding="utf-8")
        with pytest.raises(UserError, match="damaged TMX"):
            list(file_lines(Side(tmp_path / "t.tmx", "de")))


@pytest.mark.parametrize(
    "text",
    ["a: !!python/object/apply:os.system ['touch hacked']", "a: !ruby/object:Gem::Installer {}", "!!python/name:os.system ''", "a: !own 1"],
)
@pytest.mark.parametrize("read", [load_params, load_entry, lambda path: parse_yaml(path.read_text(), "--set a")])
@pytest.mark.usefixtures("empty_directory")
def test_a_tag_in_yaml_is_refused(text: str, read: Callable[[Path], object]) -> None:
    Path("own.yaml").write_text(text, encoding="utf-8")
    with refused(78, "not valid YAML"):
        read(Path("own.yaml"))
    assert not Path("hacked").exists()


def test_a_document_of_aliases_of_aliases_is_refused_in_few_words(tmp_path: Path) -> None:
    """Nine levels of ten: 10^10 values, if they were copied or printed."""
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    text = "\n".join(["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", *levels, "name: *a9", "languages: *a9"])
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"name: must be a name, got") as caught:
        validate_document(Entry, read_yaml(tmp_path / "own.yaml"), tmp_path / "own.yaml")
    assert len(str(caught.value)) < 5_000


def check_entry(source: dict[str, object], languages: list[str]) -> None:
    splits = {split: [source] for split in ("train", "valid", "test")}
    document = {"name": "own", "languages": languages, "licence": None, "note": "", "splits": splits}
    validate_document(Entry, document, Path("own.yaml"))


NO_ADDRESSES = ["file:///etc/passwd", "ftp://a./b", "data:,x", "//a/b", "http:///b", "https://a./%00", "https://a./b\nc"]
WITHOUT_A_HOST = ["http://", "https://:80/x", "https://?a", "http://a:b@:80/x", "http://%20/x", "http://[::1/x", "http://a:99999/x"]


@pytest.mark.parametrize("url", [*NO_ADDRESSES, *WITHOUT_A_HOST])
def test_an_address_of_another_scheme_or_without_a_host_is_refused_when_the_entry_is_read(url: str) -> None:
    with refused(78, r"url: must be an address that begins with https:// or http:// and a host, got "):
        check_entry({"https": {language: {"url": url} for language in ("en", "de")}}, ["en", "de"])


@pytest.mark.parametrize("language", ["../../en", "/en", "e n", "en\n", "", "en/de"])
def test_a_language_is_no_path(language: str) -> None:
    with refused(78, r"languages\.1: must be a language"):
        check_entry({"mtdata": "x"}, ["de", language])


@pytest.mark.usefixtures("empty_directory")
def test_a_corpus_is_no_path() -> None:
    """The folder of its downloads is removed at the end of the stage: `..` would be the whole folder of states."""
    Path("corpora").mkdir()
    Path("corpora/...yaml").write_text("name: ..\n", encoding="utf-8")
    for name in ("..", "../x", ".", "/x"):
        with pytest.raises(UserError, match="no corpus is called"):
            find_entry(name)


def test_a_password_of_an_address_is_not_in_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "mirror/own"
    folder.mkdir(parents=True)
    (folder / "t.en").write_bytes(TEXT)
    lock = tmp_path / "own.lock"
    for password in ("s3cret", "other"):  # The second finds the sum of the first.
        fetcher = Fetcher("own", tmp_path / "downloads", tmp_path / "mirror", lock)
        fetcher.fetch(f"https://me:{password}@invalid./t.en")
        fetcher.write_locks()
    assert list(parse_yaml(lock.read_text(encoding="utf-8"), "lock")) == ["https://invalid./t.en"]
