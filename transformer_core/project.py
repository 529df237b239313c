"""A project outside a clone: params.yaml, dvc.yaml and the settings of DVC, Prefect and git, for the installed packages.

setup.py imports this module to copy `FILES` into a wheel, so importing it must need only the standard library.
"""

import os
import subprocess
from pathlib import Path

from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import sha256_of, write_text

# Files of the repository that are copied to a project; dvc.yaml is adapted.
FILES = (
    ".dvc/.gitignore",
    ".dvc/config",
    ".dvc/plots/logarithmic.json",
    ".dvc/plots/percent_bars.json",
    ".dvcignore",
    ".gitignore",
    "corpora/README.md",
    "dvc.yaml",
    "local_files/README.md",
    "prefect.toml",
    "prefect.yaml",
    "pretrained/None",
    "pretrained/README.md",
)
# Folder of a wheel to which setup.py copies them.
PACKAGED = "project_files"
# Folder of a project with the SHA-256 sums of the installed code, one file per stage.
SUMS = "installed"
_INSTALLED = Path(__file__).parents[1]  # site-packages, or the root of a clone
_COMMENT = """\
The DAG: the command, inputs and outputs of each stage. Settings are in params.yaml; section `machine` is in no stage's params, because it
cannot change a result. installed/STAGE.sha256 lists the installed code of a stage. After an upgrade of transformer-pipeline,
`transformer-core new .` writes these lists again, and `dvc repro` runs the stages whose code has changed.
"""


def new_project(folder: Path) -> list[Path]:
    """Write the files of a project that `folder` lacks, and each stage's list of installed code; make it a git repository.

    Returns the existing files, other than params.yaml, that were kept although their content differs from the package's. Raises
    `UserError`: 78, `folder` is a file or a clone of this repository, or git refuses it; 69, git is not installed.
    """
    from transformer_core import recipes
    from transformer_core.config import PARAMS_FILE

    if (folder / "transformer_core").exists():
        raise configuration_error(f"{folder}: holds the code itself and needs no other project")
    if folder.exists() and not folder.is_dir():
        raise configuration_error(f"{folder}: is a file", "Name a folder.")
    if not (folder / ".git").exists():
        git(Path(), "init", "--quiet", str(folder))
    dag, code = adapt(text_of("dvc.yaml"))
    contents = {name: text_of(name) for name in FILES} | {"dvc.yaml": dag, PARAMS_FILE.name: recipes.read(recipes.DEFAULT)}
    kept = []
    for path, content in ((folder / name, content) for name, content in contents.items()):
        if not path.exists():
            write_text(path, content)
        elif path.name != PARAMS_FILE.name and path.read_bytes() != content.encode():
            kept.append(path)
    for stage, paths in code.items():
        write_text(folder / SUMS / f"{stage}.sha256", "".join(f"{sha256_of(_INSTALLED / path)}  {path}\n" for path in _files(paths)))
    return kept


def check_repository(root: Path) -> str:
    """Return that `root` is the top of a git repository with DVC. Raises `UserError`: it is not."""
    git(root, "rev-parse", "--git-dir", remedy="Go to your clone of the repository, or: git init")
    for name in (".dvc", "dvc.yaml"):
        if not (root / name).exists():
            raise configuration_error(f"no {name} here", "Go to the top of the repository, or: transformer-core new .")
    return "git and DVC are set up"


def adapt(dag: str) -> tuple[str, dict[str, list[str]]]:
    """Return the text of dvc.yaml with one list of sums in place of each stage's code, and the paths of that code by stage."""
    from transformer_core.yaml_io import editable_yaml, yaml_text

    document = editable_yaml(dag, "dvc.yaml")
    document.yaml_set_start_comment(_COMMENT)
    code: dict[str, list[str]] = {}
    for stage, entry in document["stages"].items():
        code[stage] = [path for path in entry["deps"] if path.startswith(("transformer_core/", "flows/"))]
        for path in code[stage]:
            entry["deps"].remove(path)
        entry["deps"].append(f"{SUMS}/{stage}.sha256")
    return yaml_text(document), code


def text_of(name: str) -> str:
    """Return the content of one of `FILES`, from the wheel or from a clone installed in editable mode."""
    packaged = Path(__file__).with_name(PACKAGED) / name
    return (packaged if packaged.exists() else _INSTALLED / name).read_text(encoding="utf-8")


def _files(paths: list[str]) -> list[str]:
    """Return the files among `paths` and in the folders among them, relative to `_INSTALLED`, without `__pycache__`."""
    found = [file for path in paths for file in ((_INSTALLED / path).rglob("*") if (_INSTALLED / path).is_dir() else [_INSTALLED / path])]
    return sorted(file.relative_to(_INSTALLED).as_posix() for file in found if file.is_file() and "__pycache__" not in file.parts)


def git(folder: Path, *arguments: str, remedy: str = "", **variables: str) -> str:
    """Return the output of git in a folder, run with these variables. Raises `UserError`: 78, git refuses; 69, it is not installed."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **variables}
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, errors="surrogateescape", env=environment).stdout.strip()
    except FileNotFoundError:
        raise UserError("git is not installed", "Install git: DVC needs it.", ExitCode.UNAVAILABLE) from None
    except subprocess.CalledProcessError as error:
        answer = error.stderr.partition("\n")[0].removeprefix("fatal: ")
        raise configuration_error(f"git: {answer}", remedy) from None
