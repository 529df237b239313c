"""A catalogue entry in `corpora/` for a user's aligned text files: written for new files, updated for changed ones."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from transformer_core.compressed import open_bytes
from transformer_core.corpus.sources.catalogue import OWN_ENTRIES, Entry, Size, entry_names, load_entry
from transformer_core.corpus.sources.formats import file_lines, file_pairs
from transformer_core.corpus.sources.holdout import held_out, is_usable
from transformer_core.corpus.sources.readers import located, named_from
from transformer_core.corpus.text import Pair, decode_line, lacks_spaces, normalise, write_pairs
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import sha256_of, write_text
from transformer_core.schema import validate_document
from transformer_core.tasks import is_language, task_of
from transformer_core.yaml_io import editable_yaml, read_yaml, yaml_text

_MOST_HELD_OUT = 1000
_LINES_LOOKED_AT = 10_000
_LINES_OF_A_SMALL_CORPUS = 40_000  # The vocabulary of a larger one does not depend on its characters (recipes.for_own_data).
_SHORT_WORD = 15  # SentencePiece's longest piece, less the mark of a space.
_NO_LANGUAGES = frozenset({"txt", "tmx", "tsv", "sgm", "csv", "zip", "tgz", "src", "tgt", "trg", "ref", "hyp"})


@dataclass(frozen=True)
class _Side:
    """The file of one language, and its column if it is a table."""

    file: Path
    column: int | None = None


# The side of each language, source first.
_Sides = Mapping[str, _Side]


def new_entry(
    name: str,
    source_file: Path,
    target_file: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    valid: int | tuple[Path, Path] | None = None,
    test: int | tuple[Path, Path] | None = None,
) -> Path:
    """Check aligned files, and write corpora/NAME.yaml with their sums; held-out pairs are copied to files beside it.

    Rule `clean.drop_overlap` keeps these pairs out of the training.

    Args:
        name: an entry of that name is replaced (see `check_unused`).
        source_file: a file that `formats.file_lines` reads.
        target_file: its translation, line by line; the same file if it holds both languages (TMX, or a .tsv of two columns).
        source_language: None takes it from the file's suffix (`corpus.en`, `corpus.en.gz`); `target_language` likewise.
        valid: source and target file of validation, or the number of pairs held out for it; None is a tenth of all, at most 1,000. `test`
            likewise.

    Returns:
        The entry's path.

    Raises:
        UserError: exit code 65; a file is missing, empty or not UTF-8, the sides have unequal lengths, or too few pairs are usable. 78;
            the name or a language is invalid or missing, or one file cannot hold both languages. Nothing is then written.
    """
    path = _path_of(name)
    languages = source_language or _named_language(source_file, "source"), target_language or _named_language(target_file, "target")
    if languages[0] == languages[1]:
        raise configuration_error(f"{name}: both sides are {languages[0]}", "Set --source-language and --target-language.")
    for language in languages:
        if not is_language(language):
            remedy = "Name another language, or for parsing write an entry with a source `trees` (docs/parsing.md)."
            raise configuration_error(f"{name}: {language} is not a language of text, but the target of {task_of(language).name}", remedy)
    train = _sides(languages, source_file, target_file)
    size = _measure(train)
    tenth = max(1, min(_MOST_HELD_OUT, size.pairs // 10))
    splits: dict[str, list[dict[str, Any]]] = {"train": [{"files": _files(train, path.parent)}]}
    sizes = {split: wanted or tenth for split, wanted in (("valid", valid), ("test", test)) if not isinstance(wanted, tuple)}
    chosen = held_out(lambda: _pairs(train), sizes, source_file) if sizes else {}
    for split, files in (("valid", valid), ("test", test)):
        if isinstance(files, tuple):
            sides = _sides(languages, *files)
            _measure(sides)
            splits[split] = [{"files": _files(sides, path.parent)}]
        else:
            splits[split] = [{"files": {language: {"path": f"{name}.{split}.{language}"} for language in languages}}]
    entry = {"name": name, "languages": list(languages), "licence": None, "note": "", "size": size.model_dump(), "splits": splits}
    validate_document(Entry, entry, path)  # Before anything is written: a leftover entry would block the next try.
    for split, pairs in chosen.items():
        left, right = (path.with_name(f"{name}.{split}.{language}") for language in languages)
        write_pairs(left, right, pairs)
        splits[split] = [{"files": _files(_sides(languages, left, right), path.parent)}]
    write_text(path, yaml_text(entry))
    return path


def languages_without_spaces(entry: Path) -> list[str]:
    """Return the languages of an entry whose local training text has no spaces between words, as far as its first lines show."""
    beginnings = {language: " ".join(islice(lines, _LINES_LOOKED_AT)) for language, lines in _training_text(entry).items()}
    return [language for language, text in beginnings.items() if lacks_spaces(text)]


def number_of_strings(entry: Path) -> tuple[int, int]:
    """Return the numbers of different characters and of different short words in the local training text of an entry, after the repairs.

    Those of all its languages together; of a large corpus only the beginning is read.
    """
    lines = chain.from_iterable(islice(lines, _LINES_OF_A_SMALL_CORPUS) for lines in _training_text(entry).values())
    characters, words = set[str](), set[str]()
    for line in map(normalise, lines):
        characters |= set(line)
        words |= {word for word in line.split() if len(word) <= _SHORT_WORD}
    return len(characters), len(words)


def _training_text(entry: Path) -> dict[str, Iterator[str]]:
    """Return the lines of an entry's local training text by language."""
    files = load_entry(entry).splits.train[0].files or {}
    return {
        language: (line.decode() for line in file_lines(located(entry.parent, file.path), language, file.column))
        for language, file in files.items()
    }


def check_unused(name: str) -> None:
    """Check the name of a new corpus. Raises `UserError` (78): it is invalid or in use."""
    path = _path_of(name)
    if path.exists():
        remedy = f"To update it for changed files: transformer-core data update {name}. Or choose another name."
        raise configuration_error(f"{path}: there is a corpus {name} already", remedy)
    if name in entry_names():
        raise configuration_error(f"{name}: a corpus of this name comes with the package", "Choose another name.")


def _path_of(name: str) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise configuration_error(f"{name!r}: not a name for a corpus", "Use letters, digits, dots, dashes and underscores.")
    return OWN_ENTRIES / f"{name}.yaml"


def update_entry(name: str) -> tuple[Size | None, Size | None]:
    """Update corpora/NAME.yaml for changed local files: their sums, and the size. The rest of the entry stays as it is, with its comments.

    Files of two languages are checked. The size is updated only if all training text is in `files`.

    Returns:
        The size before, None if the entry had none, and the size after, None if it was not measured.

    Raises:
        UserError: exit code 65 as `new_entry`; 78 if corpora/ has no such entry, or if it names no local file. Nothing is then written.
    """
    path = _path_of(name)
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in OWN_ENTRIES.glob("*.yaml"))) or "none"
        raise configuration_error(f"{path}: no such file", f"Your own corpora: {names}.")
    entry = load_entry(path)
    if not any(source.files for sources in entry.sources.values() for source in sources):
        raise configuration_error(f"{path}: names no local file with `files`", "Make data/raw again with: dvc repro --force download")
    document = read_yaml(path, editable_yaml)
    train = []
    for split, sources in entry.sources.items():
        section = entry.key_of(split).partition(".")[0]
        for source, there in zip(sources, document[section][split], strict=True):
            sides = {language: _Side(located(path.parent, file.path), file.column) for language, file in (source.files or {}).items()}
            for language, side in sides.items():
                with open_bytes(side.file):  # For its error.
                    there["files"][language]["sha256"] = sha256_of(side.file)
            if len(sides) == 2:
                measured = _measure(sides)
                train += [measured] if split == "train" else []
    size = None
    if len(train) == len(entry.splits.train):
        pairs, text_bytes = (sum(getattr(part, name) for part in train) for name in ("pairs", "text_bytes"))
        size = Size(pairs=pairs, text_bytes=text_bytes, download_bytes=0)
        document["size"] = size.model_dump()
    write_text(path, yaml_text(document))
    return entry.size, size


def _sides(languages: tuple[str, str], source_file: Path, target_file: Path) -> dict[str, _Side]:
    """Return the side of each language. Raises `UserError` (78): one file is given for both, and cannot hold both."""
    suffixes = source_file.suffixes
    columns: tuple[int | None, int | None] = (None, None)
    if source_file.resolve() == target_file.resolve() and ".tmx" not in suffixes:
        if ".tsv" not in suffixes:
            raise configuration_error(f"{source_file}: given for both sides, but only .tmx and .tsv files hold both", "Name two files.")
        cells = next(file_lines(source_file), b"").count(b"\t") + 1
        if cells != 2:
            remedy = "Keep two, source first, or write the entry with the columns that hold the text (corpora/README.md)."
            raise configuration_error(f"{source_file}: {cells} columns; a table for both sides must have 2", remedy)
        columns = (1, 2)
    return {languages[0]: _Side(source_file, columns[0]), languages[1]: _Side(target_file, columns[1])}


def _named_language(file: Path, side: str) -> str:
    language = Path(file.name.removesuffix(".gz").removesuffix(".xz")).suffix.removeprefix(".")
    if not re.fullmatch(r"[a-z]{2,3}", language) or language in _NO_LANGUAGES:
        raise configuration_error(f"{file}: its name does not end in a language", f"Name it like corpus.en or set --{side}-language.")
    return language


def _pairs(sides: _Sides) -> Iterator[Pair[bytes]]:
    files, columns = zip(*((side.file, side.column) for side in sides.values()), strict=True)
    return file_pairs(files, [*sides], columns)


def _measure(sides: _Sides) -> Size:
    """Check every line of two aligned files, and return their size."""
    (source_language, source), (target_language, target) = sides.items()
    number = usable = text_bytes = 0
    for number, pair in enumerate(_pairs(sides), start=1):
        decode_line(pair.source, source.file, number)
        decode_line(pair.target, target.file, number)
        text_bytes += len(pair.source) + len(pair.target) + 2
        usable += is_usable(pair)
    if not number:
        raise UserError(f"{source.file}: empty", "A corpus has a sentence on each line.")
    if not usable:
        fault = f"none of {number:,} pairs has text in {source_language} and {target_language}"
        raise UserError(f"{source.file}: {fault}", "Look at the files; a .tmx file marks the language of each sentence.")
    return Size(pairs=number, text_bytes=text_bytes, download_bytes=0)


def _files(sides: _Sides, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the value of `files` in an entry in `folder`."""
    files: dict[str, dict[str, Any]] = {}
    for language, side in sides.items():
        files[language] = {"path": named_from(folder, side.file), "sha256": sha256_of(side.file)}
        if side.column is not None:
            files[language]["column"] = side.column
    return files
