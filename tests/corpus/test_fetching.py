import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.corpora import reader_of, written_raw
from tests.refusals import refused
from tests.serving import Quiet, serving
from transformer_core.corpus.sources.catalogue import Address, Source
from transformer_core.corpus.sources.fetching import Fetcher, Sum, locked_sums, mirror_folder, name_of_address
from transformer_core.corpus.sources.http import TRIES

CONTENT = b"a sentence a line\n" * 100_000
RIGHT = Sum(hashlib.sha256(CONTENT).hexdigest())


@dataclass
class Site:
    """A web server on the loopback.

    Attributes:
        faults: what it does in turn before it behaves: a status, "truncate" (half of what was asked for, then nothing), "less" (a part
            that is shorter than what was asked for), "redirect" or "redirect ADDRESS".
        mark: its ETag; None for a server that marks no versions.
        ranges: whether it sends parts.
        encoding: the encoding that it says the content has in transit.
    """

    address: str = ""
    faults: list[int | str] = field(default_factory=list)
    content: bytes = CONTENT
    mark: str | None = '"1"'
    ranges: bool = True
    encoding: str | None = None
    requests: list[str] = field(default_factory=list)
    asked_from: list[int] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()

    class Handler(Quiet):
        def do_GET(self) -> None:
            served.requests.append(self.path)
            fault = served.faults.pop(0) if served.faults else 200
            if isinstance(fault, str) and fault.startswith("redirect"):
                return self.reply(302, Location=fault.removeprefix("redirect").strip() or "/elsewhere/train.en")
            wanted = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            served.asked_from.append(wanted)
            start = wanted if served.ranges and self.headers.get("If-Range") == served.mark else 0
            body = served.content[start : start + 1_000] if fault == "less" else served.content[start:]
            status, part = (206, f"{start}-{start + len(body) - 1}") if body else (416, "*")
            of_part = f"bytes {part}/{len(served.content)}" if start else None
            headers = {"ETag": served.mark, "Content_Encoding": served.encoding, "Content_Range": of_part, "Content_Length": str(len(body))}
            code = fault if isinstance(fault, int) and fault != 200 else status if start else 200
            sent = body[: len(body) // 2] if fault == "truncate" else body
            with suppress(BrokenPipeError):  # Of an answer like 503 nobody reads the body.
                self.reply(code, sent, **{name: value for name, value in headers.items() if value is not None})

    with serving(Handler) as host:
        served.address = f"http://{host}/data/train.en"
        yield served


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return Fetcher("tiny", tmp_path / "downloads", pause_seconds=0.01)


def fetch_half(site: Site, fetcher: Fetcher) -> None:
    site.faults = ["truncate", *[503] * TRIES]
    with refused(69, "503"):
        fetcher.fetch(site.address)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_comes_with_its_sum_and_a_second_try_does_not_fetch_it_again(site: Site, fetcher: Fetcher) -> None:
    for expected in (None, RIGHT, Sum(hashlib.md5(CONTENT).hexdigest(), "md5")):
        fetched = fetcher.fetch(site.address, expected)
        assert (fetched.path.read_bytes(), fetched.sha256) == (CONTENT, RIGHT.digest)
    assert len(site.requests) == 1


REFUSALS: list[tuple[list[int | str], str, int, str]] = [
    ([], "0" * 64, 65, f"wrong sha256: wanted {'0' * 64}, found {RIGHT.digest}"),
    ([503] * TRIES, RIGHT.digest, 69, "503 Server Error.*put the file at MIRROR/tiny/train.en and set machine.mirror"),
    ([404], RIGHT.digest, 78, "404 Client Error.*Correct the address .*or put the file at MIRROR/tiny/train.en"),
    *(
        ([f"redirect {to}"], RIGHT.digest, 78, "Correct the address")
        for to in ("file:///etc/passwd", "data:text/plain,text", "http://a..b/x")
    ),
]


@pytest.mark.parametrize(("faults", "digest", "code", "words"), REFUSALS)
def test_a_failed_download_is_one_line(site: Site, fetcher: Fetcher, faults: list[int | str], digest: str, code: int, words: str) -> None:
    site.faults = list(faults)
    with refused(code, f"{site.address}: .*{words}"):
        fetcher.fetch(site.address, Sum(digest))
    assert len(site.requests) == max(1, len(faults))
    assert files_in(fetcher.downloads) == []


# How a site differs, and the requests that a file takes. More breaks than `TRIES`: each try brings half of the rest. A file that a server
# marks as compressed in transit is kept as it is.
RECOVERIES: list[tuple[dict[str, Any], int]] = [
    ({"faults": [503, 500]}, 3),
    ({"faults": [429, 503]}, 3),
    ({"faults": ["redirect"]}, 2),
    ({"faults": ["truncate"] * (TRIES + 1)}, TRIES + 2),
    ({"faults": ["truncate", *["less"] * 5]}, 7),
    ({"faults": ["truncate"], "content": gzip.compress(CONTENT), "encoding": "gzip"}, 2),
]


@pytest.mark.parametrize(("changes", "requests"), RECOVERIES)
def test_a_download_goes_on_where_it_broke(site: Site, fetcher: Fetcher, changes: dict[str, Any], requests: int) -> None:
    vars(site).update({**changes, "faults": [*changes["faults"]]})
    assert fetcher.fetch(site.address).path.read_bytes() == site.content
    assert len(site.requests) == requests
    assert site.asked_from == sorted(site.asked_from)
    assert (site.asked_from[-1] > 0) == ("truncate" in changes["faults"])
    assert len(files_in(fetcher.downloads)) == 1


@pytest.mark.parametrize("complete", [False, True])
def test_a_later_call_continues_where_the_one_before_ended(site: Site, fetcher: Fetcher, complete: bool) -> None:
    """Also if that had the whole file, and ended before it renamed it."""
    fetch_half(site, fetcher)
    (part,) = fetcher.downloads.rglob("*.part")
    if complete:
        part.write_bytes(CONTENT)
    here = part.stat().st_size
    assert len(CONTENT) / 3 < here <= len(CONTENT)
    assert fetcher.fetch(site.address).path.read_bytes() == CONTENT
    assert site.asked_from[-1] == here


@pytest.mark.parametrize(("mark", "ranges"), [('"2"', True), (None, True), ('W/"1"', True), ('"1"', False)])
def test_a_part_of_another_or_of_no_version_is_not_continued(site: Site, fetcher: Fetcher, mark: str | None, ranges: bool) -> None:
    site.mark, site.ranges = '"1"' if mark == '"2"' else mark, ranges
    fetch_half(site, fetcher)
    site.content, site.mark = CONTENT[::-1], mark
    assert fetcher.fetch(site.address).path.read_bytes() == CONTENT[::-1]


def test_a_file_without_a_published_sum_must_have_the_locked_one(site: Site, tmp_path: Path) -> None:
    lock = tmp_path / "corpora/tiny.lock"
    fetcher = Fetcher("tiny", tmp_path / "first", lock=lock)
    first = fetcher.fetch(site.address)
    assert not lock.exists()
    fetcher.write_locks()
    assert json.loads(lock.read_text(encoding="utf-8")) == {site.address: first.sha256}
    assert Fetcher("tiny", tmp_path / "second", lock=lock).fetch(site.address).sha256 == first.sha256
    site.content, site.mark = CONTENT[::-1], '"2"'
    with refused(65, f"wrong sha256: wanted {first.sha256}, found .*correct the sum in {lock}"):
        Fetcher("tiny", tmp_path / "third", lock=lock).fetch(site.address)
    Fetcher("tiny", tmp_path / "fourth", lock=lock).fetch(site.address, Sum(hashlib.sha256(site.content).hexdigest()))
    assert list(json.loads(lock.read_text(encoding="utf-8"))) == [site.address]


def write_table(side: Address, folder: Path, name: str = "raw") -> None:
    """Write the raw text of two columns of a table on the web."""
    sides = {"en": side, "de": side.model_copy(update={"column": "2"})}
    written_raw(reader_of(folder, Source(https=sides), lock=folder / "tiny.lock"), folder / name)


def test_a_download_that_cannot_be_read_is_not_locked_and_the_line_says_how_to_fetch_it_again(site: Site, tmp_path: Path) -> None:
    """A server sends the page for its login, later the file."""
    side = Address(url=f"{site.address}.gz", column="1")
    site.content = b"<html>Log in</html>"
    with refused(65, f"damaged gzip file.* To fetch the files again, remove {tmp_path / 'downloads/tiny'}"):
        write_table(side, tmp_path)
    shutil.rmtree(tmp_path / "downloads/tiny")
    site.content = gzip.compress(b"one\teins\ntwo\tzwei\nthree\tdrei\n")
    write_table(side, tmp_path, "again")
    assert locked_sums(tmp_path / "tiny.lock") == {side.url: hashlib.sha256(site.content).hexdigest()}


def test_addresses_with_the_same_file_name_are_kept_apart_and_an_escaped_slash_stays_in_the_folder(site: Site, fetcher: Fetcher) -> None:
    first, second = fetcher.fetch(site.address), fetcher.fetch(site.address.replace("/data/", "/other/"))
    assert first.path != second.path
    assert len(site.requests) == 2
    assert fetcher.fetch(site.address + "/..%2F..%2F..%2Foutside").path.parent == fetcher.downloads / "tiny"


def test_the_mirror_replaces_the_network_and_one_file_is_not_read_for_two_addresses(site: Site, fetcher: Fetcher, tmp_path: Path) -> None:
    folder = tmp_path / "mirror/tiny"
    folder.mkdir(parents=True)
    (folder / "train.en").write_bytes(CONTENT)
    mirrored = replace(fetcher, mirror=tmp_path / "mirror")
    assert mirrored.fetch(site.address, RIGHT).path == folder / "train.en"
    with refused(65, f"{folder}/train.en: wrong sha256: wanted {'0' * 64}, found {RIGHT.digest}"):
        mirrored.fetch(site.address, Sum("0" * 64))
    assert site.requests == []
    other = site.address.replace("/data/", "/other/")
    site.faults = [503] * TRIES
    with refused(69, f"put the file at {folder / name_of_address(other)} and set machine.mirror"):
        mirrored.fetch(other)
    (folder / name_of_address(other)).write_bytes(b"other\n")
    assert mirrored.fetch(other).path.read_bytes() == b"other\n"
    assert mirrored.fetch(site.address).path == folder / "train.en"


def test_the_mirror_of_the_environment_has_precedence_over_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("set", "environment", "repository/mirror", "copy"):
        (tmp_path / folder).mkdir(parents=True)
    assert mirror_folder(None) is None
    assert mirror_folder(str(tmp_path / "set")) == tmp_path / "set"
    monkeypatch.chdir(tmp_path / "copy")  # Of an experiment.
    monkeypatch.setenv("DVC_EXP_NAME", "dry-nibs")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "repository"))
    assert mirror_folder("mirror") == tmp_path / "repository/mirror"
    with refused(78, r"machine\.mirror: no folder ~nobody-of-that-name/mirror"):
        mirror_folder("~nobody-of-that-name/mirror")
    monkeypatch.setenv("TRANSFORMER_MIRROR", str(tmp_path / "environment"))
    assert mirror_folder(str(tmp_path / "set")) == tmp_path / "environment"
    monkeypatch.setenv("TRANSFORMER_MIRROR", str(tmp_path / "none"))
    with refused(78, r"\$TRANSFORMER_MIRROR: no folder"):
        mirror_folder(None)
