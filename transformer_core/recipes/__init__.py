"""Whole params files by name, kept and handed out as text, so that their comments reach the user."""

import difflib
import io
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ruamel.yaml import YAML

from transformer_core.config import Params, validate_document
from transformer_core.errors import configuration_error
from transformer_core.files import new_file
from transformer_core.presets import TABLE_3, TABLE_3_ALIASES, table_3_row

_SUFFIX = ".yaml"
_ROWS_START_FROM = "wmt14-en-de-base"
_BASELINES_START_FROM = "synthetic"
_LEAST_VOCABULARY = 400
_BIG_STARTS_FROM = "wmt14-en-de-big"
_MACHINE_SECTION = re.compile(r"^machine:.*\n?(?:[ \t#].*\n?|\n)*", re.MULTILINE)
_AVERAGE_SECTION = re.compile(r"^# 6\.1: .*\naverage:\n(?:  .*\n)*", re.MULTILINE)
_FIRST_COMMENT = re.compile(r"(?:^#.*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Baseline:
    """What a baseline's recipe is, in a few words, and its `model` section beside `preset: tiny`."""

    words: str
    architecture: str
    settings: dict[str, str] = field(default_factory=dict)


BASELINES = {
    "synthetic-convolutional": Baseline("convolutions with attention in each decoder layer", "convolutional"),
    "synthetic-recurrent": Baseline("an LSTM encoder-decoder with a fixed vector between its halves", "recurrent", {"attention": "none"}),
    "synthetic-recurrent-additive": Baseline("an LSTM encoder-decoder with additive attention", "recurrent", {"attention": "additive"}),
    "synthetic-recurrent-dot": Baseline("an LSTM encoder-decoder with dot-product attention", "recurrent", {"attention": "dot"}),
    "synthetic-recurrent-forward": Baseline(
        "a fixed vector from an encoder of one direction", "recurrent", {"attention": "none", "bidirectional": "false"}
    ),
    "synthetic-recurrent-reversed": Baseline(
        "a fixed vector from the reversed source (Sutskever 2014)",
        "recurrent",
        {"attention": "none", "bidirectional": "false", "reverse_source": "true"},
    ),
    "synthetic-recurrent-cho": Baseline("a fixed vector read at every step (Cho 2014)", "recurrent", {"decoder": "cho"}),
    "synthetic-recurrent-bahdanau": Baseline(
        "additive attention in the order of its paper (Bahdanau 2015)", "recurrent", {"decoder": "bahdanau"}
    ),
    "synthetic-recurrent-luong": Baseline("dot attention with input feeding (Luong 2015)", "recurrent", {"decoder": "luong"}),
}


def names() -> list[str]:
    """The packaged recipes, one for each row of the paper's Table 3 and one for each baseline, in alphabetical order."""
    files = resources.files(__package__).iterdir()
    packaged = [file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)]
    return sorted([*packaged, *_rows(), *BASELINES])


def _rows() -> list[str]:
    """Names of the rows of Table 3, each with `table3/` before it."""
    return [*TABLE_3_ALIASES, *(name for name in TABLE_3 if "/" in name)]


def read(name: str) -> str:
    """The text of a recipe's params file.

    Raises:
        UserError: exit code 78; no such recipe.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"Recipes: {', '.join(names())}."
        raise configuration_error(f"recipe {name!r}: no such recipe", remedy)
    if name in _rows():
        return _row(name)
    if name in BASELINES:
        return _baseline(name)
    return resources.files(__package__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")


def load(name: str) -> Params:
    """The settings of a recipe.

    Raises:
        UserError: exit code 78; no such recipe.
    """
    return validate_document(Params, YAML(typ="safe", pure=True).load(read(name)), Path(f"recipe {name}"))


def _row(name: str) -> str:
    """A row of Table 3: the recipe of its model with that row's preset and smoothing, and without averaging, as the table has it."""
    row = table_3_row(name)
    assert row is not None
    short = name.removeprefix("table3/")
    start = _BIG_STARTS_FROM if name == "table3/big" else _ROWS_START_FROM
    comment = (
        f"# Row {short} of the paper's Table 3: PPL {row.perplexity:.2f} and BLEU {row.bleu} on newstest2013 there. "
        f"One checkpoint, not\n# averaged; else as {start}.\n"
    )
    text = _FIRST_COMMENT.sub(comment, read(start), count=1)
    changes = {
        "# Table 3, row base.": f"# Table 3, row {short}.",
        f"  preset: {start.removeprefix('wmt14-en-de-')}": f"  preset: {name}",
        "  label_smoothing: 0.1": f"  label_smoothing: {row.label_smoothing}",
        f"  name: {start}": f"  name: wmt14-en-de-{name.replace('/', '-')}",
    }
    for old, new in changes.items():
        text = text.replace(old, new)
    return _AVERAGE_SECTION.sub("average:\n  of: last\n  count: 1\n", text)


def _baseline(name: str) -> str:
    """The default recipe with another model."""
    baseline = BASELINES[name]
    comment = (
        f"# Baseline on the generated corpus: {baseline.words}. The default\n"
        "# recipe with another model: same corpus, same updates. Scores on it say nothing about translation of real text.\n"
    )
    text = _FIRST_COMMENT.sub(comment, read(_BASELINES_START_FROM), count=1)
    settings = "".join(f"  {key}: {value}\n" for key, value in baseline.settings.items())
    text = text.replace("  preset: tiny\n", f"  architecture: {baseline.architecture}\n  preset: tiny\n{settings}")
    return text.replace("  name: synthetic-en-de\n", f"  name: {name}-en-de\n")


def description(name: str) -> str:
    """What a recipe is for: the first sentence of its first comment."""
    comment = _FIRST_COMMENT.match(read(name))
    words = " ".join(line.removeprefix("#").strip() for line in comment.group().splitlines()) if comment else ""
    return words.split(". ")[0].removesuffix(".")


def for_own_data(corpus: str, source: str, target: str, pairs: int) -> str:
    """The recipe own-data filled in for a corpus of that many pairs.

    The vocabulary is a quarter of the pairs, within bounds: each subword should be seen often enough to be learnt, and a text allows no
    more subwords than it has different strings. Below the lower bound alphabets would not fit.
    """
    yaml = YAML()
    yaml.width = 1_000  # Comments and values stay on their lines.
    document = yaml.load(read("own-data"))
    document["download"].update(corpus=corpus, source=source, target=target)
    document["bpe"]["vocab_size"] = min(max(_LEAST_VOCABULARY, pairs // 4), document["bpe"]["vocab_size"])
    document["publish"]["name"] = f"{corpus}-{source}-{target}"
    filled = io.StringIO()
    yaml.dump(document, filled)
    return filled.getvalue()


def check_unedited(path: Path) -> None:
    """Raise a `UserError` (exit code 78) where a params file stands at `path` whose tracked part is no recipe's: a person's work."""
    if path.exists() and _split(_standing(path))[0] not in {_split(read(name))[0] for name in names()}:
        raise configuration_error(f"{path}: differs from every recipe and would be lost", "Keep a copy, then repeat with --force.")


def write(text: str, path: Path, *, force: bool) -> None:
    """Make `text` the params file at `path`; the `machine` section that stands there already is kept.

    Raises:
        UserError: as `check_unedited`, unless `force`.
    """
    if not force:
        check_unedited(path)
    tracked, machine = _split(text)
    if path.exists():
        machine = _split(_standing(path))[1] or machine
    with new_file(path) as temporary:
        temporary.write_text(tracked + machine, encoding="utf-8", newline="\n")


def _standing(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _split(text: str) -> tuple[str, str]:
    """A params file's text without its `machine` section, and that section."""
    found = _MACHINE_SECTION.search(text)
    return (text, "") if found is None else (text[: found.start()] + text[found.end() :], found.group())
