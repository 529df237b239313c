"""A clone of this repository with a tiny model on a few lines of the bundled corpora, and commands in it."""

import lzma
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

from ruamel.yaml import YAML

from transformer_core import recipes
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES
from transformer_core.files import sha256_of

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared/data"  # Corpora and the outputs of peers, if somebody has put them beside the repository.

# A few lines of the bundled corpora, beside the entries in corpora/: `write_corpora`.
CORPUS = """
name: tiny
languages: [en, de]
licence: CC BY 2.0 FR
note: ""
splits:
  train: [{files: {en: {path: tiny/train.tsv, column: 1}, de: {path: tiny/train.tsv, column: 2}}}]
  valid: [{files: {en: {path: tiny/valid.tsv, column: 1}, de: {path: tiny/valid.tsv, column: 2}}}]
  test: [{files: {en: {path: tiny/test.tsv, column: 1}, de: {path: tiny/test.tsv, column: 2}}}]
"""
TREES = """
name: tiny-trees
languages: [id, tree]
licence: CC BY-SA 4.0
note: ""
splits:
  train: [{trees: tiny/train.txt}]
  valid: [{trees: tiny/dev.txt}]
  test: [{trees: tiny/test.txt}]
"""
TRAIN_PAIRS, TEST_PAIRS = 600, 20
TINY = {
    "download": {"corpus": "tiny"}, "bpe": {"vocab_size": 400}, "model": {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2},
    "train": {
        "updates": 30, "save_every": 10, "validate_every": 10, "bleu_sentences": 4, "warmup": 20,
        "cooldown": 0,  # Otherwise a training cannot be lengthened.
        "tokens_per_update": 640, "tokens_per_microbatch": 200,
    },
    "average": {"count": 2}, "decode": {"max_extra": 5},
    # More devices are ranks of a torchrun, each of which imports torch and what tells MLflow.
    "machine": {"devices": 1, "threads": 1},
}  # fmt: skip


def git(*command: str | Path, at: Path = Path()) -> str:
    """The output of a command of git in a folder, without the line's end."""
    by_somebody = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
    return subprocess.run(by_somebody, cwd=at, check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip("\n")


class Clone:
    """A checkout with its own environment variables, as a user's shell has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "TRANSFORMER_"))}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, stdin: str = "", code: int = 0) -> str:
        """Output and errors of a command that must end with `code`."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=self.root, env=self.environment, input=stdin, text=True, timeout=300, check=False, **streams)
        assert done.returncode == code, done.stdout
        return done.stdout

    def copy(self, root: Path) -> "Clone":
        """All of it at `root`, with an environment of its own."""
        subprocess.run(["cp", "-r", self.root, root], check=True)
        return Clone(root)

    def set(self, changes: dict[str, dict[str, object]]) -> None:
        yaml = YAML()
        params = yaml.load(self.root / "params.yaml")
        for section, values in changes.items():
            params[section].update(values)
        yaml.dump(params, self.root / "params.yaml")

    def commit(self, message: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", message)

    def model_bytes(self) -> str:
        return sha256_of(self.root / "models/averaged/model.safetensors")


def bundled(name: str, count: int | None) -> list[str]:
    """The first lines of a bundled file, such as tatoeba/train.tsv; all for None."""
    with lzma.open(PACKAGED_ENTRIES / f"{name}.xz", "rt", encoding="utf-8", newline="\n") as file:
        return list(islice(file, count))


def write_corpora(folder: Path) -> None:
    """Write the entries `tiny` and `tiny-trees` and their files to a folder of entries."""
    (folder / "tiny").mkdir()
    for entry, text in (("tiny", CORPUS), ("tiny-trees", TREES)):
        (folder / f"{entry}.yaml").write_text(text, encoding="utf-8")
    for corpus, files in (("tatoeba", ("train.tsv", "valid.tsv", "test.tsv")), ("icon", ("train.txt", "dev.txt", "test.txt"))):
        for name in files:
            lines = bundled(f"{corpus}/{name}", TRAIN_PAIRS if name.startswith("train") else TEST_PAIRS)
            (folder / "tiny" / name).write_text("".join(lines), encoding="utf-8")


def tiny_clone(root: Path) -> Clone:
    """The tracked files of this repository as they are now at `root`, with tiny settings, committed."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file() and name != "dvc.lock":
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    write_corpora(root / "corpora")
    made = Clone(root)
    # Not the settings with which the repository's user has replaced them.
    (root / "params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    made.run("git", "init", "-q")
    made.set(TINY)
    made.commit("settings")
    return made
