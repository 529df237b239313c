"""New data of a corpus: what of it has changed since the last run, and how a run takes that in.

`.state/watch/CORPUS-taken.json` has the versions that the last run took, `CORPUS-told.json` those of which a watcher has told last.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import requests

from flows.dvc.commands import DVC_FILE, dvc
from flows.process.paths import MANIFEST, STATE
from flows.record.documents import read_output
from flows.record.registry import CHAMPION, fetch, number_of
from flows.record.server import tracking_uri
from transformer_core.config import PRETRAINED, Machine, Params, check_params
from transformer_core.corpus.sources.catalogue import OWN_ENTRIES, REGISTRY, FoundEntry, Source, find_entry
from transformer_core.corpus.sources.fetching import lock_file, locked_sums
from transformer_core.corpus.sources.local_corpus import update_entry
from transformer_core.corpus.sources.readers import located, tree_files
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line, without_logins
from transformer_core.files import read_json, sha256_of, write_json
from transformer_core.tuning import settings
from transformer_core.yaml_io import editable_yaml

_ANSWER_SECONDS = 30


class Version(NamedTuple):
    """The sum of a file, the ETag of an address, or the number of a model; of a file also its size and time, equal while it is the same."""

    value: str
    size: int = 0
    time_ns: int = 0


Versions = Mapping[str, Version]


def versions(found: FoundEntry, machine: Machine, known: Versions) -> Versions:
    """Return the present versions of local files, addresses without a published sum and models of the registry, by their names.

    A file of known size and time is not read. Raises `UserError`: 65, no file; 69, an address or the registry is away; 78, no such model.
    """
    now = {}
    for entry, source in _sources(found):
        for file in (source.files or {}).values():
            now[file.path] = _of_file(located(entry.path.parent, file.path), known.get(file.path), entry.path)
        for path in tree_files(entry, source.trees) if source.trees else ():
            now[str(path)] = _of_file(path, known.get(str(path)), entry.path)
        for address in (source.https or {}).values():
            if address.sha256 is None:
                now[without_logins(address.url)] = Version(_tag_of(address.url))
        if source.translated and source.translated.registered:
            now[source.translated.model] = Version(number_of(source.translated.model.removeprefix(REGISTRY), tracking_uri(machine)))
    return now


def _sources(found: FoundEntry) -> Iterator[tuple[FoundEntry, Source]]:
    """Yield the sources of an entry, and those of the entries whose text is translated for it, each with its entry."""
    for source in chain.from_iterable(found.entry.sources.values()):
        yield found, source
        if source.translated:
            other = find_entry(source.translated.corpus, f"{found.path}: translated.corpus")
            yield from ((other, one) for one in other.entry.splits.train if not one.translated)


def _of_file(path: Path, known: Version | None, named_in: Path) -> Version:
    if not path.is_file():
        raise UserError(f"{path}: no such file", f"{named_in} names it.")
    status = path.stat()
    if known and known[1:] == (status.st_size, status.st_mtime_ns):
        return known
    return Version(sha256_of(path), status.st_size, status.st_mtime_ns)


def _tag_of(url: str) -> str:
    """Return the ETag of what is at an address, or its time and size. Raises `UserError` (69): no answer."""
    try:
        answer = requests.head(url, allow_redirects=True, timeout=_ANSWER_SECONDS, headers={"Accept-Encoding": "identity"})
        answer.raise_for_status()
    except (requests.RequestException, ValueError) as error:
        raise UserError(f"{without_logins(url)}: {first_line(error)}", "Try again.", ExitCode.UNAVAILABLE) from None
    return answer.headers.get("ETag") or " ".join(answer.headers.get(name, "") for name in ("Last-Modified", "Content-Length"))


def changes(now: Versions, before: Versions) -> list[str]:
    """Return the names of what is new, has changed or is gone."""
    return sorted(name for name in now.keys() | before.keys() if name not in now or name not in before or now[name][0] != before[name][0])


def look(found: FoundEntry, machine: Machine) -> tuple[Versions, list[str]]:
    """Return the present versions, and the names to tell of: they differ from what the last run took and from what was told last.

    If no run on new data is known, the last one took the sums in the manifest of data/raw, and of all else the present versions.
    """
    corpus = found.entry.name
    before, told = _read(corpus, "taken"), _read(corpus, "told")
    now = versions(found, machine, {**before, **told})
    if not before and MANIFEST.exists() and (manifest := read_output(MANIFEST))["corpus"] == corpus:
        before = dict(now) | {origin["file"]: Version(origin["sha256"]) for origin in manifest["origin"] if "file" in origin}
        write_json(file_of(corpus, "taken"), before)
    return now, changes(now, before) if changes(now, told) else []


@contextmanager
def taking_in(corpus: str, params: Params) -> Iterator[list[str]]:
    """Let entries and locks name the present versions, and yield the names of what has changed since the last run.

    It counts as taken once the block succeeds. Raises `UserError`: as `versions` and `update_entry`; 78, params.yaml has another corpus.
    """
    if corpus != params.download.corpus:
        raise configuration_error(f"download.corpus: is {params.download.corpus}, but the new data is of {corpus}")
    found, before = find_entry(corpus), _read(corpus, "taken")
    now = versions(found, params.machine, before)
    new = changes(now, before)
    for entry in {entry.path: entry for entry, _ in _sources(found)}.values():
        lock = lock_file(entry.entry.name)
        if (sums := locked_sums(lock)).keys() & set(new):
            write_json(lock, {name: digest for name, digest in sums.items() if name not in new})
        files = {file.path for source in chain.from_iterable(entry.entry.sources.values()) for file in (source.files or {}).values()}
        if entry.path.parent == OWN_ENTRIES and files & set(new):
            update_entry(entry.entry.name)
    yield new
    write_json(file_of(corpus, "taken"), now)


def train_champion_further(document: dict[str, Any]) -> None:
    """Change settings so that the champion of `publish.name` is trained further, as `data tune` does it; it is copied into pretrained/.

    Raises `UserError`: as `fetch` and `settings`.
    """
    params = check_params(document)
    with TemporaryDirectory() as folder:
        champion = fetch(f"{params.publish.name}@{CHAMPION}", tracking_uri(params.machine), Path(folder))
        tuned = editable_yaml(settings(find_entry(params.download.corpus).path, champion), "data tune")
    start = PRETRAINED / tuned["train"]["init_from"]
    if Path(f"{start}{DVC_FILE}").exists():  # Else a worktree would have what it was before.
        subprocess.run(dvc("add", "--quiet", str(start)), check=True)
    tuned["bpe"]["user_symbols"] = params.bpe.user_symbols
    document.update({section: tuned[section] for section in ("bpe", "binarize", "model", "train", "average", "decode")})
    check_params(document)


def file_of(corpus: str, kind: str) -> Path:
    return STATE / "watch" / f"{corpus}-{kind}.json"


def _read(corpus: str, kind: str) -> Versions:
    """Return the versions of a file; empty if none is known."""
    file = file_of(corpus, kind)
    return {name: Version(*version) for name, version in read_json(file).items()} if file.exists() else {}
