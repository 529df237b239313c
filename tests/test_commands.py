"""The shell blocks of the pages, and the Python of docs/python.md, run as printed in a tiny clone that has a result.

A block that cannot run here has the reason above it: <!-- not run by the tests: REASON -->
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.clone import Clone
from tests.test_docs import PAGES, text_of
from tests.test_end_to_end import finished_clone

pytestmark = pytest.mark.slow  # about 2 minutes all together

_BLOCK = re.compile(r"^(<!-- not run by the tests: [^\n]+ -->\n)?```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {page: [commands for reason, commands in _BLOCK.findall(text_of(page)) if not reason] for page in PAGES}
# Names that a reader replaces by his own, a pager, and a setting that would train again (test_end_to_end.py has such an experiment).
REPLACED = {"/some/folder": "../store", "COMMIT": "HEAD", " | less": "", "-S train.seed=2": "-S evaluate.examples=3"}
# The README takes a corpus of one's own through the other stages.
REPLACED_IN = {"docs/data.md": {"dvc repro": "dvc repro binarize"}}
# In the clone `dvc repro` first makes the training small, which `data new` has set to the size of a corpus.
DVC = """#!/bin/sh
[ "$1" != repro ] || python -c "
from pathlib import Path
from tests.clone import TINY, Clone
Clone(Path()).set({section: values for section, values in TINY.items() if section != 'download'})"
exec PROGRAMS/dvc "$@"
"""
# By hand, as a reader may: a model this small is of no use, and takes no alias.
CHAMPION = "import mlflow; mlflow.MlflowClient('sqlite:///mlflow.db').set_registered_model_alias('tatoeba-en-de', 'champion', '1')"
TMX = """<tmx version="1.4"><header srclang="en" segtype="sentence"/><body>{units}</body></tmx>"""
UNIT = """<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="fr"><seg>{}</seg></tuv></tu>"""


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after `dvc repro`, with a git remote, programs in .venv/bin, and the files that the pages name as the reader's."""
    made = finished_clone(request, tmp_path_factory, "pages")
    made.run(sys.executable, "-c", CHAMPION)
    made.run("git", "init", "-q", "--bare", "../origin")
    made.run("git", "remote", "add", "origin", made.root.with_name("origin").as_uri())
    made.run("git", "push", "-q", "origin", "HEAD:main")
    programs, here = Path(sys.executable).parent, made.root / ".venv/bin"
    here.mkdir(parents=True)
    for name in ("transformer-core", "mlflow"):
        (here / name).symlink_to(programs / name)
    # A link to Python would not find the packages of its virtual environment.
    for name, script in {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', "dvc": DVC.replace("PROGRAMS", str(programs))}.items():
        (here / name).write_text(script)
        (here / name).chmod(0o755)
    raw = made.root / "data/raw"
    sources, targets = (raw / "train.en").read_text(), (raw / "train.de").read_text()
    units = map(UNIT.format, sources.splitlines(), targets.splitlines())
    theirs = {"corpus.en": sources, "corpus.de": targets, "captions.en": sources, "captions.fr": targets}
    theirs |= dict.fromkeys(("new.en", "in.en", "test.en"), (raw / "test.en").read_text())
    theirs |= {"in.json": '{"inputs": ["A line."]}', "memory.tmx": TMX.format(units="".join(units))}
    theirs |= {"baseline.de": (made.root / "results/decode/test.hyp").read_text(), "candidate.de": (raw / "test.de").read_text()}
    for name, text in theirs.items():
        (made.root / name).write_text(text)
    return made


@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_commands_of_a_page_run_as_printed(page: str, finished: Clone, tmp_path: Path) -> None:
    copy = Clone(shutil.copytree(finished.root, tmp_path / "clone", symlinks=True))
    copy.environment |= {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    for commands in RUN[page]:
        assert not re.search(r"\b(pip|make|docker|kubectl|sbatch)\b", commands), f"{page}: would install, or needs a cluster"
        if "data new" in commands:  # Which replaces a recipe alone.
            shutil.copyfile(copy.root / "transformer_core/recipes/tatoeba.yaml", copy.root / "params.yaml")
        for name, replacement in (REPLACED | REPLACED_IN.get(page, {})).items():
            commands = commands.replace(name, replacement)
        copy.run("bash", "-euo", "pipefail", "-c", commands)


def test_the_python_of_the_page_runs_as_printed(finished: Clone, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path / "clone")
    for commands in RUN["docs/python.md"]:
        copy.run("bash", "-euc", commands)
    copy.run(sys.executable, "-c", "\n".join(re.findall(r"^```python\n(.*?)^```$", text_of("docs/python.md"), re.MULTILINE | re.DOTALL)))
