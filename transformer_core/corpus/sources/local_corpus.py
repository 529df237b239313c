"""A catalogue entry in `corpora/` for a user's aligned text files: written for new files, updated for changed ones."""

import re
from collections.abc import Iterator, Sequence
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any

from transformer_core.compressed import open_bytes, without_packing
from transformer_core.corpus.sources import markup
from transformer_core.corpus.sources.archives import names_in
from transformer_core.corpus.sources.catalogue import OWN_ENTRIES, Entry, Size, entry_names, load_entry
from transformer_core.corpus.sources.formats import ARCHIVE, MARKUP, Side, file_pairs, form_of
from transformer_core.corpus.sources.holdout import held_out, is_usable
from transformer_core.corpus.sources.manifest import SYMBOL_ERRORS
from transformer_core.corpus.sources.readers import located, named_from, side_of
from transformer_core.corpus.statistics import describe
from transformer_core.corpus.text import Pair, decode_line, has_symbols, lacks_spaces, normalise, write_pairs
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import sha256_of, write_text
from transformer_core.schema import validate_document
from transformer_core.tasks import is_language, task_of, without_region
from transformer_core.yaml_io import editable_yaml, read_yaml, yaml_text

_MOST_HELD_OUT = 1000
_LINES_LOOKED_AT = 10_000
_LINES_OF_A_SMALL_CORPUS = 40_000  # The vocabulary of a larger one does not depend on its characters (recipes.for_own_data).
_MOST_DESCRIBED = 100_000
_NAME_OF_COLUMN = re.compile(r"[^\W\d]\w*(?:[ ._-]\w+)?")
_SHORT_WORD = 15  # SentencePiece's longest piece, less the mark of a space.
_NO_LANGUAGES = frozenset({"txt", "tmx", "xlf", "tsv", "sgm", "csv", "zip", "tgz", "src", "tgt", "trg", "ref", "hyp"})
# The files of a folder in which Hugging Face's `datasets` saved a split, or of one in its hub.
_SAVED, _SPLIT = ("*.arrow", "*.parquet"), re.compile(r"(?i)(?<![a-z])(train|valid|dev|test)")
# Files of an archive that are no text.
_ABOUT = re.compile(r"(?i)(?:.*/)?(?:_about\.txt|readme.*|licen[cs]e.*|.*\.(?:ids|xml|info)|\._.*)|.*/")

# The two sides of a text in one or several files.
_Sides = list[tuple[Side, Side]]


def new_entry(
    name: str,
    source_file: Path,
    target_file: Path | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    valid: int | Sequence[Path] | None = None,
    test: int | Sequence[Path] | None = None,
    symbols: bool = False,
) -> Path:
    """Check aligned files, and write corpora/NAME.yaml with their sums, return its path; held-out pairs are copied to files beside it.

    Args:
        name: an entry of that name is replaced (see `check_name`).
        source_file: a file that `formats.form_of` knows, an archive with one or two such files, or a folder of a saved dataset.
        target_file: its translation, line by line; None or the same file if that holds both languages.
        source: the column of the source in all files (see `formats.Side`). `target` likewise.
        source_language: None takes it from the file's suffix (`corpus.en.gz`); a region is left out, de_DE is de. `target_language`
            likewise.
        valid: one or two files, or the number of pairs held out; None is a tenth of all, at most 1,000. `test` likewise.
        symbols: whether the tokens are symbols, which are scored by error rates.

    Raises `UserError`: 65, a file is missing, empty or not UTF-8, the sides have unequal lengths, or too few pairs are usable; 78, the name
    or a language is invalid or missing, or which columns hold the text cannot be told. Nothing is then written.
    """
    path = _path_of(name)
    files = [source_file, target_file or source_file]
    given = source_language or _named_language(files[0]), target_language or _named_language(files[1])
    languages = [without_region(language) for language in given]
    if languages[0] == languages[1]:
        remedy = "Set --source-language and --target-language to two that differ without their regions."
        raise configuration_error(f"{name}: both sides are {languages[0]}", remedy)
    for language in languages:
        if not is_language(language):
            remedy = "Name another language, or for parsing write an entry with a source `trees` (docs/parsing.md)."
            raise configuration_error(f"{name}: {language} is not a language of text, but the target of {task_of(language).name}", remedy)
    train = _sides(languages, files, (source, target))
    size = _measure(train)
    tenth = max(1, min(_MOST_HELD_OUT, size.pairs // 10))
    splits = {"train": _sources(train, path.parent)}
    sizes: dict[str, int] = {}
    for split, wanted in (("valid", valid), ("test", test)):
        if isinstance(wanted, Sequence):
            sides = _sides(languages, [wanted[0], wanted[-1]], (source, target))
            _measure(sides)
            splits[split] = _sources(sides, path.parent)
        else:
            sizes[split] = wanted or tenth
            splits[split] = [{"files": {language: {"path": f"{name}.{split}.{language}"} for language in languages}}]
    entry = {"name": name, "languages": languages, "licence": None, "note": "", "size": size.model_dump(), "splits": splits}
    entry |= {"metrics": ["word-error-rate", SYMBOL_ERRORS]} if symbols else {}
    validate_document(Entry, entry, path)  # Before anything is written: a leftover entry would block the next try.
    for split, pairs in (held_out(lambda: _pairs(train), sizes, source_file) if sizes else {}).items():
        left, right = (Side(path.with_name(f"{name}.{split}.{language}"), language) for language in languages)
        write_pairs(left.path, right.path, pairs)
        splits[split] = _sources([(left, right)], path.parent)
    write_text(path, yaml_text(entry))
    return path


def languages_without_spaces(entry: Path) -> list[str]:
    """Return the languages of an entry whose local training text has no spaces between words, as far as its first lines show."""
    sides = zip(*islice(training_pairs(entry), _LINES_LOOKED_AT), strict=True)  # None without local text.
    return [language for language, lines in zip(load_entry(entry).languages, sides, strict=False) if lacks_spaces(" ".join(lines))]


def measured_strings(entry: Path) -> tuple[int, int, float]:
    """Return what decides on the settings (recipes.for_own_data), in the local training text of an entry after the repairs.

    The numbers of different characters and of different short words, of all languages together, and the mean of words between spaces in a
    sentence. Of a large corpus only the beginning is read.
    """
    characters, words = set[str](), set[str]()
    number = in_all = 0
    for line in map(normalise, chain.from_iterable(islice(training_pairs(entry), _LINES_OF_A_SMALL_CORPUS))):
        split = line.split()
        characters |= set(line)
        words |= {word for word in split if len(word) <= _SHORT_WORD}
        number, in_all = number + 1, in_all + len(split)
    return len(characters), len(words), in_all / max(number, 1)


def training_pairs(entry: Path, split: str = "train") -> Iterator[Pair[str]]:
    """Yield the pairs of an entry's local training text, or of that of another split; of several languages those of the first two."""
    loaded = load_entry(entry)
    for source in loaded.sources[split]:
        if files := source.files:
            named = [language for language in loaded.languages if language in files][:2]
            sides = [side_of(files[language], located(entry.parent, files[language].path), language) for language in named]
            for pair in file_pairs(sides[0], sides[-1]):
                yield Pair(*(line.decode(errors="replace") for line in pair))


def described(entry: Path) -> Iterator[str]:
    """Yield lines on an entry's local text, of a large one on pairs at even distances. Raises `UserError` (65): a file is damaged."""
    loaded = load_entry(entry)
    names = [all(map(_NAME_OF_COLUMN.fullmatch, pair)) for pair in islice(training_pairs(entry), 2)]
    if names == [True, False]:
        yield "The first pair looks like the names of columns: if it is, set --source and --target to them, or remove the row."
    step = -(-loaded.size.pairs // _MOST_DESCRIBED) if loaded.size else 1
    if SYMBOL_ERRORS in loaded.metrics:
        for language, side in zip(loaded.languages, zip(*training_pairs(entry), strict=True), strict=False):
            yield f"{language}: symbols are {'strings between spaces' if has_symbols(side) else 'characters'}"
    elif next(training_pairs(entry), None):
        others = {split: training_pairs(entry, split) for split in loaded.sources if split != "train"}
        yield from describe(islice(training_pairs(entry), None, None, step), others)


def check_name(name: str, *, may_exist: bool) -> None:
    """Check the name of a new corpus. Raises `UserError` (78): it is invalid or, unless `may_exist`, in use."""
    path = _path_of(name)
    if path.exists() and not may_exist:
        remedy = f"To update it for changed files: transformer-core data update {name}. Or choose another name."
        raise configuration_error(f"{path}: there is a corpus {name} already", remedy)
    if name in entry_names() and not may_exist:
        raise configuration_error(f"{name}: a corpus of this name comes with the package", "Choose another name.")


def _path_of(name: str) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise configuration_error(f"{name!r}: not a name for a corpus", "Use letters, digits, dots, dashes and underscores.")
    return OWN_ENTRIES / f"{name}.yaml"


def update_entry(name: str) -> tuple[Size | None, Size | None]:
    """Update corpora/NAME.yaml for changed local files: their sums, and the size. The rest of the entry stays as it is, with its comments.

    Files of two languages are checked. Returns the size before, None if the entry had none, and the size after, None if not all training
    text is in `files`. Raises `UserError`: 65 as `new_entry`; 78, corpora/ has no such entry, or it names no local file. Nothing is then
    written.
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
            sides = [side_of(file, located(path.parent, file.path), language) for language, file in (source.files or {}).items()]
            for side in sides:
                with open_bytes(side.path):  # For its error.
                    there["files"][side.language]["sha256"] = sha256_of(side.path)
            if len(sides) == 2:
                measured = _measure([(sides[0], sides[1])])
                train += [measured] if split == "train" else []
    size = None
    if len(train) == len(entry.splits.train):
        pairs, text_bytes = (sum(getattr(part, name) for part in train) for name in ("pairs", "text_bytes"))
        size = Size(pairs=pairs, text_bytes=text_bytes, download_bytes=0)
        document["size"] = size.model_dump()
    write_text(path, yaml_text(document))
    return entry.size, size


def _named_language(file: Path) -> str:
    language = Path(without_packing(file.name)).suffix.removeprefix(".")
    if not re.fullmatch(r"[a-z]{2,3}", language) or language in _NO_LANGUAGES:
        found = f"; it has {', '.join(languages)}" if (languages := _languages_in(file)) else ""
        remedy = f"Name files like corpus.en and corpus.de, or set --source-language and --target-language{found}."
        raise configuration_error(f"{file}: its name does not end in a language", remedy)
    return language


def _languages_in(file: Path) -> list[str]:
    return markup.languages_in(file) if file.is_file() and form_of(file) == MARKUP else []


def _sides(languages: Sequence[str], files: Sequence[Path], columns: Sequence[str | None]) -> _Sides:
    """Return the sides of a text in two files, one file, or the shards in a folder. Raises `UserError` (65, 78)."""
    members: Sequence[str | None] = (None, None)
    if files[0] == files[1] and files[0].is_dir():
        shards = [file for pattern in _SAVED for file in sorted(files[0].glob(pattern))]
        if not shards:
            inside = ", ".join(sorted(path.name for path in files[0].iterdir() if path.is_dir())) or "none"
            raise configuration_error(f"{files[0]}: a folder without {' or '.join(_SAVED)}", f"Name a file, or a folder in it: {inside}.")
        if len(splits := {split for shard in shards for split in _SPLIT.findall(shard.stem)}) > 1:
            fault = f"{files[0]}: files of several splits: {', '.join(sorted(splits))}"
            raise configuration_error(fault, "Put those of each into a folder of its own, or name a file.")
        return [side for shard in shards for side in _sides(languages, [shard, shard], columns)]
    if files[0] == files[1] and form_of(files[0]) == ARCHIVE:
        members = _members(files[0], languages)
    source, target = map(Side, files, languages, columns, members)
    return [(source, target)]


def _members(archive: Path, languages: Sequence[str]) -> list[str]:
    """Return patterns for the files of both languages in an archive, which may be one file."""
    names = [name for name in names_in(archive) if not _ABOUT.fullmatch(name)]
    of_side = [[name for name in names if without_packing(name).endswith(f".{language}")] for language in languages]
    found = [name for (name,) in of_side] if all(len(side) == 1 for side in of_side) else names * 2
    if len(found) != 2:
        fault = f"{archive}: which of its files? It has {', '.join(names) or 'none'}"
        raise configuration_error(fault, "Unpack it and name the files, or write the entry with `member`.")
    return [*map(escape, found)]


def _pairs(sides: _Sides) -> Iterator[Pair[bytes]]:
    return chain.from_iterable(file_pairs(source, target) for source, target in sides)


def _measure(sides: _Sides) -> Size:
    """Check every line of aligned files, and return their size."""
    number = usable = equal = with_tabs = text_bytes = 0
    source, target = sides[0]
    for number, pair in enumerate(_pairs(sides), start=1):
        # A line of a table may hold names or a part of a row.
        where = number if source.path != target.path else f"pair {number}"
        decode_line(pair.source, source.path, where)
        decode_line(pair.target, target.path, where)
        text_bytes += len(pair.source) + len(pair.target) + 2
        usable += is_usable(pair)
        equal += pair.source == pair.target
        with_tabs += b"\t" in pair.source and b"\t" in pair.target
    if not number:
        raise UserError(f"{source.path}: empty", "A corpus has a sentence on each line.")
    if not usable:
        found = _languages_in(source.path)
        fault = f"none of {number:,} pairs has text in {source.language} and {target.language}"
        raise UserError(f"{source.path}: {fault}", f"The languages in it are {', '.join(found)}." if found else "Look at the files.")
    if number in (equal, with_tabs):
        fault = "the sides are equal" if number == equal else "there are tabs, as in a table,"
        remedy = "If one file holds both languages, name it once; set --source and --target to its columns."
        raise UserError(f"{source.path}: {fault} in each of {number:,} pairs", remedy)
    return Size(pairs=number, text_bytes=text_bytes, download_bytes=0)


def _sources(sides: _Sides, folder: Path) -> list[dict[str, Any]]:
    """Return the sources of an entry in `folder` that name these sides."""
    return [{"files": {side.language: _part(side, folder) for side in pair}} for pair in sides]


def _part(side: Side, folder: Path) -> dict[str, Any]:
    part = {"path": named_from(folder, side.path), "sha256": sha256_of(side.path), "member": side.member, "column": side.column}
    return {key: value for key, value in part.items() if value is not None}
