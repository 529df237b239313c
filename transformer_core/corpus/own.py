"""Own data: two aligned text files become a catalogue entry in `corpora/`."""

import io
import os
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from transformer_core.corpus.catalogue import OWN_ENTRIES, PACKAGED_ENTRIES, Size, entry_names
from transformer_core.corpus.formats import file_lines
from transformer_core.corpus.text import aligned, decode_line
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import new_file, sha256_of

_MOST_HELD_OUT = 1000
_NO_LANGUAGES = frozenset({"txt", "tmx", "tsv", "sgm"})


def new_entry(
    name: str,
    source_file: Path,
    target_file: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    valid_lines: int | None = None,
    test_lines: int | None = None,
    force: bool = False,
    folder: Path = OWN_ENTRIES,
) -> Path:
    """Check two aligned files and write `folder/NAME.yaml`, which pins their sums and holds validation and test out of them.

    Args:
        name: letters, digits, dots, dashes and underscores.
        source_file: text, a sentence a line, or what else `formats.file_lines` reads without a column.
        target_file: its translation, line by line; the same file where that holds both (TMX).
        source_language: taken from the file's suffix (`corpus.en`, `corpus.en.gz`) where it is None; `target_language` likewise.
        valid_lines: pairs held out for validation, `test_lines` for the test; a tenth of all, at most 1,000, where it is None.
        force: write over an entry of that name.
        folder: where entries live.

    Returns:
        The entry's path.

    Raises:
        UserError: exit code 65; a file that is missing, empty or not UTF-8, sides of unequal length, too few pairs. 78; a name that
            will not do or is taken, a language that cannot be guessed, the same language twice.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise configuration_error(f"{name!r}: no name for a corpus", "Use letters, digits, dots, dashes and underscores.")
    path = folder / f"{name}.yaml"
    if name in entry_names(folder, PACKAGED_ENTRIES) and not force:
        raise configuration_error(f"{path}: a corpus is called {name} already", "Take another name or --force.")
    source_language = source_language or _language_of(source_file, "source")
    target_language = target_language or _language_of(target_file, "target")
    if source_language == target_language:
        raise configuration_error(f"{name}: both sides are {source_language}", "Say --source-language and --target-language.")
    sides = {source_language: source_file, target_language: target_file}
    pairs, text_bytes = _measured(sides)
    tenth = max(1, min(_MOST_HELD_OUT, pairs // 10))
    valid, test = valid_lines or tenth, test_lines or tenth
    if valid + test >= pairs:
        raise UserError(f"{source_file}: {pairs:,} pairs, of which {valid + test:,} are to be held out", "Hold out fewer or add text.")
    _write_entry(path, name, sides, Size(pairs=pairs, text_bytes=text_bytes, download_bytes=0), {"valid": valid, "test": test})
    return path


def _language_of(file: Path, side: str) -> str:
    language = Path(file.name.removesuffix(".gz").removesuffix(".xz")).suffix.removeprefix(".")
    if not re.fullmatch(r"[a-z]{2,3}", language) or language in _NO_LANGUAGES:
        raise configuration_error(f"{file}: its name does not end in a language", f"Name it like corpus.en or say --{side}-language.")
    return language


def _measured(sides: dict[str, Path]) -> tuple[int, int]:
    """Pairs, and bytes of both sides' text; every line is looked at."""
    source, target = sides.values()
    pairs = text_bytes = 0
    left_lines, right_lines = (file_lines(path, language) for language, path in sides.items())
    for pairs, (left, right) in enumerate(aligned(left_lines, right_lines, source, target), start=1):
        decode_line(left, source, pairs)
        decode_line(right, target, pairs)
        text_bytes += len(left) + len(right) + 2
    if not pairs:
        raise UserError(f"{source}: empty", "A corpus has a sentence a line.")
    return pairs, text_bytes


def _write_entry(path: Path, name: str, sides: dict[str, Path], size: Size, held_out: dict[str, int]) -> None:
    files = {language: {"path": _as_seen_from(path.parent, file), "sha256": sha256_of(file)} for language, file in sides.items()}
    document: dict[str, Any] = {
        "name": name,
        "languages": list(sides),
        "licence": None,
        "note": "",
        "size": size.model_dump(),
        "splits": {"train": [{"files": files}], **{split: [{"holdout": pairs}] for split, pairs in held_out.items()}},
    }
    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(document, text)
    with new_file(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="\n")


def _as_seen_from(folder: Path, file: Path) -> str:
    """Relative inside the working directory, so that a repository can be moved; absolute elsewhere."""
    absolute = file.resolve()
    if absolute.is_relative_to(Path.cwd().resolve()):
        return Path(os.path.relpath(absolute, folder.resolve())).as_posix()
    return str(absolute)
