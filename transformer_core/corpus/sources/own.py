"""Write a catalogue entry in `corpora/` for a user's two aligned text files."""

import io
import os
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from transformer_core.corpus.sources.catalogue import OWN_ENTRIES, Size, entry_names
from transformer_core.corpus.sources.formats import file_pairs
from transformer_core.corpus.text import decode_line
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
) -> Path:
    """Check two aligned files and write corpora/NAME.yaml, which pins their sums and holds validation and test out of them.

    Args:
        name: letters, digits, dots, dashes and underscores.
        source_file: in a format that `formats.file_lines` reads without a column.
        target_file: its translation, line by line; the same file where that holds both (TMX).
        source_language: None takes it from the file's suffix (`corpus.en`, `corpus.en.gz`); `target_language` likewise.
        valid_lines: number of pairs held out for validation; None is a tenth of all, at most 1,000. `test_lines` likewise.
        force: replace an entry of that name.

    Returns:
        The entry's path.

    Raises:
        UserError: exit code 65; a file that is missing, empty or not UTF-8, sides of unequal length, too few pairs. 78; an invalid name
            or one that is in use, a language that the suffix does not tell, the same language twice.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise configuration_error(f"{name!r}: not a name for a corpus", "Use letters, digits, dots, dashes and underscores.")
    path = OWN_ENTRIES / f"{name}.yaml"
    if name in entry_names() and not force:
        raise configuration_error(f"{path}: there is a corpus {name} already", "Choose another name or --force.")
    source_language = source_language or _language_of(source_file, "source")
    target_language = target_language or _language_of(target_file, "target")
    if source_language == target_language:
        raise configuration_error(f"{name}: both sides are {source_language}", "Set --source-language and --target-language.")
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
        raise configuration_error(f"{file}: its name does not end in a language", f"Name it like corpus.en or set --{side}-language.")
    return language


def _measured(sides: dict[str, Path]) -> tuple[int, int]:
    """Check every line, and return the number of pairs and the bytes of both sides' text."""
    source, target = paths = list(sides.values())
    pairs = text_bytes = 0
    for pairs, pair in enumerate(file_pairs(paths, list(sides)), start=1):
        decode_line(pair.source, source, pairs)
        decode_line(pair.target, target, pairs)
        text_bytes += len(pair.source) + len(pair.target) + 2
    if not pairs:
        raise UserError(f"{source}: empty", "A corpus has a sentence on each line.")
    return pairs, text_bytes


def _write_entry(path: Path, name: str, sides: dict[str, Path], size: Size, held_out: dict[str, int]) -> None:
    files = {language: {"path": _relative_to(path.parent, file), "sha256": sha256_of(file)} for language, file in sides.items()}
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


def _relative_to(folder: Path, file: Path) -> str:
    """Return a relative path for a file inside the working directory, so that a repository can be moved; else an absolute one."""
    absolute = file.resolve()
    if absolute.is_relative_to(Path.cwd().resolve()):
        return Path(os.path.relpath(absolute, folder.resolve())).as_posix()
    return str(absolute)
