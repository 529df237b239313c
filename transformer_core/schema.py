"""Documents and their schemas: types of values, frozen sections, and the one line of each fault in a document."""

import difflib
import re
import reprlib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from transformer_core.errors import UserError, configuration_error

Document = TypeVar("Document", bound=BaseModel)

# Far above any sensible setting. The product of two such numbers fits 64 bits.
_MOST = 10**9
# Above every number in a file that a stage writes.
_LARGEST = 10**12

# The message of a wrong value has its field's description, or else pydantic's words.
PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
Count = Annotated[int, Field(gt=0)]
# Numbers in files that stages write. Bounded, because sums and quotients of them are printed.
Total = Annotated[int, Field(ge=0, le=_LARGEST)]
Quantity = Annotated[float, Field(ge=0, le=_LARGEST)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,1000}$", description="a name")]
# It becomes part of file names.
Language = Annotated[str, Field(pattern=r"^\w[\w-]{0,50}$", description="a language: letters, digits, dashes and underscores")]
# Types of errors of pydantic, of a section and of a tagged union.
_UNKNOWN_KEY = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_MISSING_KEY = frozenset({"missing", "missing_argument"})
# A file of another kind has many faults, of which the first are read and shown.
_FAULTS_READ, _FAULTS_SHOWN = 100, 10
_json_schema = cache(lambda schema: schema.model_json_schema())
_OTHER_FORMAT = "Another version of transformer-pipeline wrote it: make it again, or use that version."


class Section(BaseModel):
    """A frozen section of a document that refuses unknown keys and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def words(meaning: str, default: Any = ...) -> Any:
    """Return the field of a key with its meaning, for docs/settings.md, and its default; a key without one must be in the document."""
    return Field(default=default, json_schema_extra={"words": meaning})


def validate_document(schema: type[Document], document: object, path: Path) -> Document:
    """Check a document against a schema. Raises `UserError` (78), with a line for each fault that names file and key."""
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        raise combined_error(_faults(schema, error, path)) from None


def check_document(schema: type[Document], document: object, path: Path, remedy: str) -> Document:
    """Check a document that a stage wrote. Raises `UserError` (65): its first fault in one line, with this remedy."""
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        first = _faults(schema, error, path)[0]
        if first.remedy == _OTHER_FORMAT:
            remedy = _OTHER_FORMAT
        raise UserError(first.message, remedy or first.remedy) from None


def combined_error(errors: list[UserError]) -> UserError:
    """Return one `UserError` (78) with a line for each of the errors, at most ten."""
    if len(errors) > _FAULTS_SHOWN:
        return configuration_error("\n".join(map(str, errors[:_FAULTS_SHOWN])), "There are more faults.")
    *first, last = errors
    return configuration_error("\n".join([*map(str, first), last.message]), last.remedy)


def _faults(schema: type[BaseModel], error: ValidationError, path: Path) -> list[UserError]:
    """Return the faults, without missing keys that are there misspelt; of a file of another format that alone."""
    faults = error.errors()[:_FAULTS_READ]
    other_format = [fault for fault in faults if fault["loc"] == ("format",)]
    misspelt = {(*fault["loc"][:-1], *_nearest_key(schema, fault)) for fault in faults if fault["type"] in _UNKNOWN_KEY}
    correctly_spelt = [fault for fault in faults if fault["type"] not in _MISSING_KEY or fault["loc"] not in misspelt]
    return [_in_one_line(schema, fault, path) for fault in other_format or correctly_spelt]


def _nearest_key(schema: type[BaseModel], fault: ErrorDetails) -> list[str]:
    """Return the known key that is most similar to an unknown one; none if no key is similar."""
    return difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(schema, fault), n=1)


def _known_keys(schema: type[BaseModel], fault: ErrorDetails) -> list[str]:
    return sorted(_schema_at(schema, fault["loc"][:-1]).get("properties", {}))


def _in_one_line(schema: type[BaseModel], fault: ErrorDetails, path: Path) -> UserError:
    """Return a fault as pydantic describes it; a field's description, if there is one, says what its value must be."""
    key, remedy = ".".join(map(str, fault["loc"])), ""
    if fault["type"] in _UNKNOWN_KEY:
        near = _nearest_key(schema, fault)
        problem = "unknown key"
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(_known_keys(schema, fault))}."
    elif fault["type"] in _MISSING_KEY:
        problem = "missing"
    elif fault["type"] == "value_error" and not key:  # Of a `model_validator`: a contradiction between keys, which it names.
        problem = str(fault["ctx"]["error"])
    else:
        part = _schema_at(schema, fault["loc"])
        if "description" in part and "properties" not in part:
            told = f"must be {part['description']}"
        else:
            told = re.sub(r"^\w+ should ", "must ", fault["msg"].removeprefix("Value error, "))
        problem = f"{told}, got {_shown(fault['input'])}"
        remedy = _OTHER_FORMAT if fault["loc"] == ("format",) else ""
    line = f"{path}: {key}: {problem}" if key else f"{path}: {problem}"
    return configuration_error(line.replace("\n", "\\n"), remedy)  # A key may have a line feed.


def _shown(value: object) -> str:
    """Return the value as Python writes it, shortened: an alias in YAML may stand for billions of values."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 1, 200, 200
    try:
        return shortened.repr(value)
    except ValueError:
        return "a number of very many digits"


def _schema_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> dict[str, Any]:
    """Return the JSON schema of the value at a location, also inside optional values, lists, mappings and tagged unions."""
    root = _json_schema(schema)

    def resolved(part: dict[str, Any]) -> dict[str, Any]:
        part = part.get("anyOf", [part])[0]  # The other alternative of an optional value is null.
        return dict(root["$defs"][part["$ref"].rpartition("/")[2]]) if "$ref" in part else part

    part = resolved(root)
    for step in location:
        inner = part.get("properties", {}).get(step) or part.get("items") or part.get("additionalProperties")
        if "discriminator" in part:
            inner = {"$ref": part["discriminator"]["mapping"][step]}
        part = resolved(inner or {})
    return part
