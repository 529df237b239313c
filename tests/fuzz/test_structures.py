"""Well-formed files with any content: what flipped bytes rarely make."""

import contextlib
import json
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flows.sweeps.rows import document_of, grid, rows_of
from tests.corpus.corpora import archive_bytes
from tests.fuzz.text_readers import READERS
from transformer_core import recipes
from transformer_core.cli import _parser
from transformer_core.config import Params, resolve
from transformer_core.corpus.sources.archives import unpack
from transformer_core.corpus.sources.catalogue import Entry
from transformer_core.errors import UserError, for_terminal
from transformer_core.schema import validate_document
from transformer_core.yaml_io import parse_yaml, yaml_text

PARAMS = recipes.load("tatoeba").model_dump(mode="json")
KEYS = [(section, key) for section, keys in PARAMS.items() for key in keys]
SIDE = {"url": "https://a./b"}
SPLITS = {split: [{"https": {"en": SIDE, "de": SIDE}}] for split in ("train", "valid", "test")}
ENTRY: dict[str, Any] = {"name": "own", "languages": ["en", "de"], "licence": None, "note": "", "splits": SPLITS}
COMMANDS = (
    "translate in.txt --model m --beam 4 --alpha 0.6 --patience 2",
    "translate --model m --top-p 0.9 --seed 3 --precision int8 --device cpu",
    "score a b --model m --tokens --batch-tokens 100",
    "data new mine a.en a.de --valid-lines 3 --test c d --force",
    "compare a b --ref c --source d --json",
    "info --preset base --vocab-size 37000",
)
# Files of one stage that others read.
DOCUMENTS = ("manifest", "cleaning-report", "training-metrics", "decoding", "scores")
OUTPUTS = {name: json.loads(READERS[name].examples()[-1]) for name in DOCUMENTS}


def places(value: object, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """The keys of every value in a document, from the outside to the inside."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(inner, *above, key)


numbers = st.one_of(st.integers(), st.integers().map(lambda number: 10**400 + number), st.floats())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), st.dates()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.sampled_from(KEYS), values)
def test_any_value_of_any_setting_is_taken_or_refused(place: tuple[str, str], value: object) -> None:
    section, key = place
    with contextlib.suppress(UserError):
        resolve(validate_document(Params, PARAMS | {section: PARAMS[section] | {key: value}}, Path("params.yaml")).model)


@given(st.sampled_from([*ENTRY, "other"]), values)
def test_any_value_in_an_entry_is_taken_or_refused(key: str, value: object) -> None:
    with contextlib.suppress(UserError):
        validate_document(Entry, ENTRY | {key: value}, Path("own.yaml"))


@pytest.mark.parametrize("name", OUTPUTS)
@given(data=st.data(), value=values)
@few
def test_any_value_in_the_output_of_a_stage_is_taken_or_refused(name: str, data: st.DataObject, value: object, tmp_path: Path) -> None:
    document = json.loads(json.dumps(OUTPUTS[name]))
    *outer, key = data.draw(st.sampled_from(list(places(document))))
    reduce(lambda inner, step: inner[step], outer, document)[key] = value
    with contextlib.chdir(tmp_path), contextlib.suppress(UserError):
        READERS[name].read(json.dumps(document, default=str).encode(), tmp_path)


@given(values)
@example(["next line \x85", {"\x85": "\u2028"}])
def test_what_is_written_as_yaml_is_read_back_or_refused(value: object) -> None:
    with contextlib.suppress(UserError):
        assert repr(parse_yaml(yaml_text({"key": value}), "a.yaml")) == repr({"key": value})  # NaN is not equal to itself.


@given(st.text())
def test_any_text_is_fit_for_a_terminal_and_stays_so(text: str) -> None:
    shown = for_terminal(text)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert for_terminal(shown) == shown


@given(st.sampled_from(COMMANDS), st.integers(0, 8), st.text())
def test_any_word_of_a_command_line_is_taken_or_refused(line: str, place: int, word: str) -> None:
    words = line.split()
    words[place % len(words)] = word
    with contextlib.suppress(UserError):
        try:
            _parser().parse_args(words)
        except SystemExit as end:
            if end.code:  # That of help is 0.
                raise


@given(st.sampled_from(["train.warmup", "model.preset", "clean.max_ratio"]), st.text())
def test_any_setting_of_a_sweep_is_taken_or_refused(key: str, values: str) -> None:
    with contextlib.suppress(UserError):
        for row in grid(rows_of("params", 1), [f"{key}={values}", "train.seed=1,2"])[:4]:
            document_of(row, {section: keys for section, keys in PARAMS.items() if section != "machine"})


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("mode", ["w", "zip"])
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300), max_size=3))
@few
def test_a_member_of_any_name_stays_in_its_folder(tmp_path: Path, mode: str, names: list[str]) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in/a").write_bytes(archive_bytes([(name, b"text\n") for name in (*names, "../x.en", "/x.de")], mode))
    for pattern in ("*", "*.en", "/*"):
        with contextlib.suppress(UserError):
            unpack(tmp_path / "in/a", [pattern], tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert all(path.is_file() for path in (tmp_path / "in").iterdir())
