"""Exports for CTranslate2 in the user's cache: a model is converted when it is first loaded by that engine, not each time."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.corpus.tokens.shortlist import SHORTLIST
from transformer_core.errors import UserError
from transformer_core.export.ctranslate2 import export_model
from transformer_core.files import new_directory, read_json, sha256_of, write_json
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, load_model

# To be raised with every change of what `export_model` writes.
_FORMAT = 1
# Number of exports that are kept; that of a base model takes 260 MB.
_KEPT = 8
_LOCK, _SUMS = ".lock", "sums.json"


@contextmanager
def cached_export(directory: Path) -> Iterator[Path]:
    """Yield the export of a model directory, to be loaded within the block; it is made if there is none or if it is damaged.

    It is not in the model directory, which is an output of DVC, is copied when the model is published, and may be read-only. It is in
    `$XDG_CACHE_HOME` or `~/.cache`, in `transformer-pipeline/ctranslate2`, under a hash of all that it is made of: the files of the model,
    the format and CTranslate2's version. So a changed model has another export, and copies of a model share one. The last used are kept. A
    lock lets one process at a time make, load or remove exports. Where nothing can be kept, the export is made in a temporary folder.
    Raises `UserError`: see `load_model` and `export_model`.
    """
    with ExitStack() as stack:
        try:
            export = _kept(directory, stack)
        except OSError:  # No home, no space, no permission, no locks. An error in the model's own files comes again below.
            export = Path(stack.enter_context(TemporaryDirectory())) / "model"
            export_model(load_model(directory)[0], directory, export)
        yield export


def _kept(directory: Path, stack: ExitStack) -> Path:
    """Return the whole export of a model in the cache, which stays locked until the stack is closed."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    fcntl.flock(stack.enter_context((cache / _LOCK).open("w")), fcntl.LOCK_EX)
    export = cache / _key(directory)
    if not _is_whole(export):
        model, _ = load_model(directory)
        with new_directory(export) as temporary:
            export_model(model, directory, temporary)
            write_json(temporary / _SUMS, _sums(temporary))
    os.utime(export)
    for unused in sorted(cache.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(unused)
    return export


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.environ.get("HOME", ""), ".cache")
    if not base.is_absolute():
        raise FileNotFoundError("no home directory")
    return base / "transformer-pipeline" / "ctranslate2"


def _key(directory: Path) -> str:
    import ctranslate2  # type: ignore[import-untyped]

    names = [WEIGHTS, CONFIG, SUBWORD, *([SHORTLIST] if (directory / SHORTLIST).is_file() else [])]
    parts = [str(_FORMAT), ctranslate2.__version__, *(sha256_of(directory / name) for name in names)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _is_whole(export: Path) -> bool:
    """Return whether the files of an export are those that were written."""
    try:
        return bool(read_json(export / _SUMS) == _sums(export))
    except (FileNotFoundError, UserError):
        return False


def _sums(export: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(export.iterdir()) if path.name != _SUMS}
