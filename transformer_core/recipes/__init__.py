"""Recipes: complete params files by name, as text with comments.

The file of the default recipe is complete. Any other has the entries in which it differs from the default, or from the recipe that it names
in `like`: lines with the comments above them, in place of those there. Section `model` is replaced as a whole: its keys are a preset's.
"""

import re
from copy import deepcopy
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path

from ruamel.yaml.comments import CommentedMap

from transformer_core.config import Params, check_params
from transformer_core.errors import UserError, configuration_error, did_you_mean
from transformer_core.files import write_text
from transformer_core.presets import TABLE_3
from transformer_core.yaml_io import editable_yaml, parse_yaml, yaml_text

DEFAULT = "tatoeba"
OWN_DATA = "own-data"  # The recipe that `transformer-core data new` fills in; others for that begin with its name.
_SUFFIX = ".yaml"
_ROWS = [f"table3/{name}" for name in TABLE_3]
_LEAST_VOCABULARY, _LEAST_SYMBOLS, _BYTES = 400, 17, 256
_SAVES, _SAVES_A_VALIDATION = 50, 5
# A corpus of fewer pairs, and one of these with as many words a sentence, has settings of its own.
_FEW_PAIRS, _LONG_SENTENCES = 50_000, 15
# Of each baseline its short description, and the keys of its `model` section beside the preset; without an architecture, recurrent.
_BASELINES: dict[str, tuple[str, dict[str, str | bool]]] = {
    "tatoeba-convolutional": ("convolutions with attention in each decoder layer", {"architecture": "convolutional"}),
    "tatoeba-bytenet": ("dilated convolutions without attention (Kalchbrenner 2016)", {"architecture": "bytenet"}),
    "tatoeba-recurrent": ("an LSTM encoder-decoder with a fixed vector between its halves", {"attention": "none"}),
    "tatoeba-recurrent-additive": ("an LSTM encoder-decoder with additive attention", {"attention": "additive"}),
    "tatoeba-recurrent-dot": ("an LSTM encoder-decoder with dot-product attention", {"attention": "dot"}),
    "tatoeba-recurrent-forward": ("a fixed vector from an encoder of one direction", {"attention": "none", "bidirectional": False}),
    "tatoeba-recurrent-reversed": (
        "a fixed vector from the reversed source (Sutskever 2014)",
        {"attention": "none", "bidirectional": False, "reverse_source": True},
    ),
    "tatoeba-recurrent-cho": ("a fixed vector read at every step (Cho 2014)", {"decoder": "cho"}),
    "tatoeba-recurrent-bahdanau": ("additive attention in the order of its paper (Bahdanau 2015)", {"decoder": "bahdanau"}),
    "tatoeba-recurrent-luong": ("dot attention with input feeding (Luong 2015)", {"decoder": "luong"}),
}
BASELINES = {name: (words, {"architecture": "recurrent", **keys}) for name, (words, keys) in _BASELINES.items()}


def names() -> list[str]:
    """Return the names of all recipes, sorted: those with a file, one for each row of the paper's Table 3, one for each baseline."""
    packaged = [file.name.removesuffix(_SUFFIX) for file in resources.files(__package__).iterdir() if file.name.endswith(_SUFFIX)]
    return sorted([*packaged, *_ROWS, *BASELINES])


def read(name: str) -> str:
    """Return the text of a recipe's params file. Raises `UserError` (78): no such recipe."""
    return yaml_text(_document(name))


def load(name: str) -> Params:
    """Return the settings of a recipe. Raises `UserError` (78): no such recipe."""
    return check_params(parse_yaml(read(name), f"recipe {name}"), Path(f"recipe {name}"))


def description(name: str) -> str:
    """Return the first sentence of a recipe's first comment."""
    comment = " ".join(token.value.removeprefix("#").strip() for token in _document(name).ca.comment[1])
    return re.split(r"(?<! al)\. ", comment)[0].removesuffix(".")  # Not after "et al."


def for_own_data(
    corpus: str,
    source: str,
    target: str,
    pairs: int,
    characters: int,
    words: int,
    length: float = 0,
    *,
    count_words: bool = True,
    short_training: bool = False,
    symbols: bool = False,
) -> str:
    """Fill in the recipe own-data for a corpus of that many pairs and different characters and words, with so many words a sentence.

    The vocabulary size is a quarter of the number of pairs, within bounds: each subword should occur often enough to be learnt. At least
    half of it are longer strings than a character: Chinese, Japanese and Korean have thousands of characters. At most it is what
    SentencePiece surely makes of the text: the characters and the words. Bytes come in addition. Fewer than 50,000 pairs have a recipe of
    their own, and of these long sentences another.

    Args:
        count_words: False, for a language without spaces between words, turns off the rule of cleaning that counts words.
        short_training: the training would end before the usual warm-up.
        symbols: tokens are symbols, about two for each character.
    """
    few = pairs < _FEW_PAIRS
    kind = "-long-sentences" if few and length >= _LONG_SENTENCES else "-short" if short_training else "-few-pairs" if few else ""
    document = _document(OWN_DATA + ("-symbols" if symbols else kind))
    document["download"].update(corpus=corpus, source=source, target=target)
    if not count_words:
        document["clean"]["max_words"] = None
    largest = document["bpe"]["vocab_size"]
    wanted = min(max(_LEAST_VOCABULARY, 2 * characters, pairs // 4), largest)
    if count_words:
        wanted = min(wanted, max(characters + words, 5 * characters // 4))
    document["bpe"]["vocab_size"] = max(_LEAST_SYMBOLS, 2 * characters) if symbols else min(wanted + _BYTES, largest)
    document["publish"]["name"] = f"{corpus}-{source}-{target}"
    return yaml_text(document)


def for_entry(entry: Path, *, short_training: bool = False) -> str:
    """Return `for_own_data` of an entry of two languages in corpora/. Raises `UserError`: the entry or its text cannot be read."""
    from transformer_core.corpus.sources.catalogue import load_entry  # Here, because the list of recipes needs neither.
    from transformer_core.corpus.sources.local_corpus import languages_without_spaces, measured_strings
    from transformer_core.corpus.sources.manifest import SYMBOL_ERRORS

    loaded = load_entry(entry)
    (source, target), pairs = loaded.languages, loaded.size.pairs if loaded.size else 0
    symbols = SYMBOL_ERRORS in loaded.metrics
    rules = {"count_words": not languages_without_spaces(entry), "short_training": short_training, "symbols": symbols}
    return for_own_data(loaded.name, source, target, pairs, *measured_strings(entry), **rules)


def spaced(updates: int) -> dict[str, int]:
    """Return the settings of a training of about so many updates, in fifty saves, of which every fifth has a validation."""
    every = max(updates // _SAVES, 1)
    return {"updates": _SAVES * every, "save_every": every, "validate_every": _SAVES_A_VALIDATION * every}


def check_unedited(path: Path) -> None:
    """Raise `UserError` (78) if overwriting `path` would lose a user's work: its tracked part differs from that of every recipe."""
    if path.exists() and _tracked(_read_document(path)) not in (_tracked(_document(name)) for name in names()):
        raise configuration_error(f"{path}: differs from every recipe and would be lost", "Keep a copy, then repeat with --force.")


def write(text: str, path: Path, *, force: bool) -> None:
    """Write `text` as the params file at `path`, but keep the `machine` section of an existing one.

    Raises `UserError`: see `check_unedited`; not with `force`.
    """
    if not force:
        check_unedited(path)
    document = editable_yaml(text, str(path))
    if machine := _read_document(path).get("machine"):
        document["machine"] = machine
    write_text(path, yaml_text(document))


def _document(name: str) -> CommentedMap:
    if name not in names():
        remedy = did_you_mean(name, names(), f"Recipes: {', '.join(names())}.", most=1)
        raise configuration_error(f"recipe {name!r}: no such recipe", remedy)
    if name in _ROWS:
        return _row(name)
    return _baseline(name) if name in BASELINES else deepcopy(_packaged(name))


@cache
def _packaged(name: str) -> CommentedMap:
    document: CommentedMap = editable_yaml("".join(line for section in _sections(name).values() for line in section.values()), name)
    return document


def _sections(name: str) -> dict[str, dict[str, str]]:
    """Return the entries of a recipe with a file: lines with the comments above them by section and key, empty of a section's own line."""
    changes: dict[str, dict[str, str]] = {}
    section, entry = "", ""
    for line in resources.files(__package__).joinpath(name + _SUFFIX).read_text(encoding="utf-8").splitlines(keepends=True):
        entry += line
        if not line.lstrip().startswith("#"):
            key = line.partition(":")[0]
            if not key.startswith(" "):
                section, key = key, ""
            changes.setdefault(section, {})[key] = entry
            entry = ""
    start = changes.pop("like", {"": DEFAULT})[""].removeprefix("like:").strip()
    sections = {} if name == DEFAULT else _sections(start)
    for section, changed in changes.items():
        sections[section] = changed if section == "model" else {**sections.get(section, {}), **changed}
    return sections


def _row(name: str) -> CommentedMap:
    """Return the recipe of a row of Table 3: that of base or big with the row's preset and label smoothing, without averaging."""
    row, like = TABLE_3[name.removeprefix("table3/")], "big" if name == "table3/big" else "base"
    start = f"wmt14-en-de-{like}"
    document = _document(start)
    settings, others = ({**asdict(each.size), "label_smoothing": each.label_smoothing} for each in (row, TABLE_3[like]))
    changed = ", ".join(f"{key} {value}" for key, value in settings.items() if value != others[key])
    document.yaml_set_start_comment(
        f"Row {name.removeprefix('table3/')} of the paper's Table 3{changed and f' ({changed})'}: PPL {row.perplexity:.2f} and "
        f"BLEU {row.bleu} on newstest2013.\nOne checkpoint, not averaged; else as {start}."
    )
    document["model"]["preset"] = name
    document["train"]["label_smoothing"] = row.label_smoothing
    document["average"].update(of="last", count=1)
    document["publish"]["name"] = f"wmt14-en-de-{name.replace('/', '-')}"
    return document


def _baseline(name: str) -> CommentedMap:
    """Return the recipe of a baseline: the default recipe with another model."""
    (words, settings), document = BASELINES[name], _document(DEFAULT)
    document.yaml_set_start_comment(f"Baseline on Tatoeba: {words}. The default\nrecipe with another model: same corpus, same updates.")
    document["model"].insert(0, "architecture", settings["architecture"])
    document["model"].update(settings)
    document["decode"]["engine"] = "torch"  # CTranslate2 has Transformers alone.
    document["publish"]["name"] = f"{name}-en-de"
    return document


def _read_document(path: Path) -> CommentedMap:
    """Return the document at `path`; empty if the file does not exist or is not a YAML mapping."""
    try:
        document = editable_yaml(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.exists() else None
    except UserError:
        document = None
    return document if isinstance(document, CommentedMap) else CommentedMap()


def _tracked(document: CommentedMap) -> str:
    """Remove the `machine` section of a document and return the text of the rest."""
    document.pop("machine", None)
    return yaml_text(document)
