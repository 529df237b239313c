"""Reading and writing YAML."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from transformer_core.errors import configuration_error, first_line


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text, without any tag; `where` names its place. Raises `UserError` (78)."""
    return _parsed(YAML(typ="safe", pure=True), text, where)


def editable_yaml(text: str, where: str) -> Any:
    """Return the document of a YAML text with its comments, as `parse_yaml`; `yaml_text` writes it."""
    parse_yaml(text, where)  # A round trip would keep tags.
    return _parsed(_round_trip(), text, where)


def read_yaml(path: Path, parse: Callable[[str, str], Any] = parse_yaml) -> Any:
    """Read a YAML 1.2 file (the version that DVC reads, so both read 1e-9 as a number). Raises `UserError` (78)."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, IsADirectoryError):
        # Only params files and dvc.yaml are read without a check that they exist. Any recipe is a params file.
        top = path.name == "dvc.yaml"
        remedy = "Run this at the top of the repository." if top else "Write one with: transformer-core recipe tatoeba"
        raise configuration_error(f"{path}: no such file", remedy) from None
    except UnicodeDecodeError as error:
        raise configuration_error(f"{path}: not valid UTF-8 (byte {error.start})") from None


def _parsed(yaml: YAML, text: str, where: str) -> Any:
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{where}:{mark.line + 1}" if mark else where
        problem = str(error.problem or error.context)
    except RecursionError:
        problem = "nested too deep"
    # ruamel.yaml passes on Python's errors for a day that does not exist, a number of 5,000 digits or a list as a key. For comments that
    # overlap it raises a kind of RuntimeError.
    except (YAMLError, ValueError, TypeError, AttributeError, LookupError, AssertionError, RuntimeError) as error:
        problem = first_line(error)
    problem, remedy = problem.splitlines()[0], ""
    if problem.startswith("found duplicate key"):
        problem, remedy = problem.partition(" with value ")[0], "Remove one of them."  # For a section ruamel.yaml gives the value as "{}".
    elif "'\\t'" in problem:
        remedy = "Indent with spaces."
    raise configuration_error(f"{where}: not valid YAML ({problem})", remedy)


def yaml_text(document: object) -> str:
    """Return a document as YAML, its lines unbroken."""
    text = io.StringIO()
    _round_trip().dump(document, text)
    return text.getvalue()


def _round_trip() -> YAML:
    yaml = YAML()  # The default type, a round trip, keeps comments.
    yaml.width = 1_000  # Keeps lines unbroken.
    yaml.Representer = _Representer
    return yaml


class _Representer(RoundTripRepresenter):
    """Writes text as the base class, but escapes a "next line" (U+0085), which ruamel.yaml writes as it is and reads as a space."""

    def represent_str(self, text: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\x85" in text else None)


_Representer.add_representer(str, _Representer.represent_str)
