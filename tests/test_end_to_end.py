"""The whole pipeline as its users run it: `dvc repro` in a clone, with a tiny model on a tiny corpus."""

import fcntl
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sacrebleu

from tests.clone import CORPUS, TINY, Clone, tiny_clone
from tests.flows.publishing import random_model
from transformer_core import cli
from transformer_core.evaluation.scoring import read_aligned
from transformer_core.files import locked, read_json
from transformer_core.parsing.parse_scores import score
from transformer_core.yaml_io import read_yaml

pytestmark = pytest.mark.slow  # about 3 minutes all together


def finished_clone(request: pytest.FixtureRequest, temporary: pytest.TempPathFactory, name: str) -> Clone:
    """A copy of a tiny clone with two test sets after `dvc repro`, whose output is beside it; made once in a session."""
    base = temporary.getbasetemp()
    # The folders of a session's processes have one parent. That of a session without such processes has the folders of other sessions.
    finished = (base.parent if hasattr(request.config, "workerinput") else base) / "finished"
    with finished.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            made = tiny_clone(temporary.mktemp("first") / "clone")
            with (made.root / "corpora/tiny.yaml").open("a", encoding="utf-8") as entry:
                entry.write("tests:\n  test_more: [{files: {en: {path: tiny/more.en}, de: {path: tiny/more.de}}}]\n")
            for language, sentence in (("en", "I am here."), ("de", "Ich bin hier.")):
                (made.root / f"corpora/tiny/more.{language}").write_text(f"{sentence}\n" * 10, encoding="utf-8")
            made.root.with_name("repro.log").write_text(made.run("dvc", "repro"), encoding="utf-8")
            made.commit("results")
            finished.symlink_to(made.root.parent)
    return Clone(shutil.copytree(finished, temporary.mktemp(name), symlinks=True, dirs_exist_ok=True) / "clone")


@pytest.fixture(scope="module")
def clone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return finished_clone(request, tmp_path_factory, "house")


def test_repro_makes_a_model_its_scores_and_a_report(clone: Clone) -> None:
    metrics = json.loads((clone.root / "results/scores.json").read_text(encoding="utf-8"))
    assert metrics["lines"] == 20
    outputs, references = read_aligned(clone.root / "results/decode/test.hyp", clone.root / "data/raw/test.de")
    assert metrics["bleu"] == round(sacrebleu.corpus_bleu(outputs, [references], force=True).score, 2)
    assert "tok:13a" in metrics["signature"]
    assert len((clone.root / "results/decode/test_more.hyp").read_bytes().split(b"\n")) == 11
    report = (clone.root / "results/report.html").read_text(encoding="utf-8")
    assert "cached" not in report  # Each stage has just run, and DVC's hash of what it made is shown.
    assert read_yaml(clone.root / "dvc.lock")["stages"]["binarize"]["outs"][0]["md5"] in report
    assert "update 30" in clone.root.with_name("repro.log").read_text(encoding="utf-8")
    assert len(list((clone.root / ".state").glob("*/stored"))) == 1  # The state is kept, to train longer.


def test_a_second_repro_runs_nothing_whatever_python_and_an_editor_left_behind(clone: Clone) -> None:
    for folder in ("transformer_core/evaluation", "transformer_core/corpus/__pycache__"):
        (clone.root / folder).mkdir(exist_ok=True)
        for name in ("stray.cpython-311.pyc", ".stray.py.swp", "stray.py~", "#stray.py#"):
            (clone.root / folder / name).write_bytes(b"stray")
    assert clone.run("dvc", "repro").rstrip().endswith("Data and pipelines are up to date.")
    clone.run("git", "clean", "-fdq", "transformer_core")


def test_a_further_test_set_is_scored_without_a_training(clone: Clone) -> None:
    with (clone.root / "corpora/tiny.yaml").open("a", encoding="utf-8") as entry:
        entry.write("  test_late: [{files: {en: {path: tiny/more.en}, de: {path: tiny/more.de}}}]\n")
    try:
        ran = re.findall("Running stage '(.*)'", clone.run("dvc", "repro", "evaluate"))
        assert ran == ["download", "clean", "bpe", "binarize", "decode", "evaluate"]
        assert read_json(clone.root / "results/scores.json")["tests"]["test_late"]["lines"] == 10
    finally:
        clone.run("git", "checkout", "-q", "--", "corpora", "dvc.lock")
        clone.run("dvc", "checkout")


def test_a_second_clone_pulls_the_model_and_translates_without_training(clone: Clone, tmp_path: Path) -> None:
    clone.run("dvc", "remote", "add", "-f", "-d", "folder", str(tmp_path / "remote"))
    clone.commit("remote")
    clone.run("dvc", "push")
    clone.run("git", "clone", "-q", str(clone.root), str(tmp_path / "second"))
    second = Clone(tmp_path / "second")
    second.run("dvc", "pull")
    assert second.model_bytes() == clone.model_bytes()
    translate = ("-m", "transformer_core.cli", "translate", "--model", "models/averaged")
    sentence = (clone.root / "data/raw/test.en").read_text(encoding="utf-8").partition("\n")[0]
    assert second.run(sys.executable, *translate, stdin=sentence + "\n\n") == clone.run(sys.executable, *translate, stdin=sentence + "\n\n")


def test_an_experiment_is_recorded_and_changes_nothing_until_it_is_applied(clone: Clone) -> None:
    before = clone.model_bytes(), (clone.root / "results/published.json").read_bytes(), names_of_runs(clone)
    out = clone.run("dvc", "exp", "run", "--temp", "-n", "shorter", "-S", "train.updates=20", "-S", "train.seed=7")
    assert "experiment shorter is in MLflow, its model is not in the registry. To register it: dvc exp apply shorter && " in out
    assert clone.run("git", "status", "--porcelain") == ""
    assert (clone.model_bytes(), (clone.root / "results/published.json").read_bytes()) == before[:2]
    names = names_of_runs(clone)
    assert set(before[2]) < set(names)  # None was sent again: that would take the score from its name.
    assert any(re.fullmatch(r"[\d.]+ BLEU, tiny en-de tiny, seed 7", name) for name in names)
    assert not list((clone.root / ".dvc/tmp/exps").rglob("mlflow.db"))
    clone.run("dvc", "exp", "apply", "shorter")
    shown = clone.run("dvc", "exp", "show", "--csv", "--no-pager")
    assert all(column in shown for column in ("shorter", "train.updates", "last_checkpoint.perplexity"))
    plots = json.loads(clone.run("dvc", "plots", "show", "--json"))["data"]
    assert set(plots) == {"perplexity", "valid_score", "loss", "learning_rate", "by_length"}
    assert {len(json.dumps(plot)) > 500 for plot in plots.values()} == {True}


def names_of_runs(clone: Clone) -> list[str]:
    with closing(sqlite3.connect(clone.root / "mlflow.db")) as record:
        return [name for (name,) in record.execute("SELECT name FROM runs")]


def test_a_stopped_training_saves_and_goes_on(clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On two ranks, and goes on on one."""
    settings = {"updates": 2000, "save_every": 500, "validate_every": 500, "seed": 2}
    clone.set({"train": settings, "machine": {"devices": 2}})
    before = stop_a_training(clone, signal.SIGTERM, after="update 1 of")
    assert before >= 1
    clone.set({"machine": {"devices": 1}})
    stopped = stop_a_training(clone, signal.SIGUSR1, after=f"going on after update {before}")
    assert stopped > before
    monkeypatch.chdir(clone.root)

    def states(*arguments: str, code: int = 0) -> str:
        assert cli.main(["states", *arguments]) == code
        return "".join(capsys.readouterr())

    listed = states()
    assert f"update {stopped:,}, " in listed
    name = listed.split()[0]
    assert "no state of a stopped training" in states("--remove", "other", code=78)
    with locked(clone.root / ".state" / name / "lock", "this training"):
        assert "this training is running" in states("--remove", "all", code=69)
        assert f"update {stopped:,}, running, " in states()
    assert f"removed .state/{name}" in states("--remove", name, name)
    assert name not in states()
    states("--remove", "all")
    assert "no training was stopped here" in states()


def stop_a_training(clone: Clone, number: signal.Signals, after: str, repro: bool = False) -> int:
    """Start stage train, send it a signal after a line of its log; the update it says it stopped after.

    With `repro`, DVC starts it, and the signal goes to both, as Ctrl-C in a terminal does.
    """
    command = ["dvc", "repro"] if repro else [sys.executable, "-m", "flows.stages", "train"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=clone.root, env=clone.environment, text=True, start_new_session=True, **streams)
    assert process.stderr is not None
    output = []
    for line in process.stderr:
        output.append(line)
        if line.startswith(after):
            (os.killpg if repro else os.kill)(process.pid, number)
    code = process.wait(120)
    assert code != 0 if repro else code == 75
    assert "Traceback" not in "".join(output)
    ended = read_json(clone.root / ".state/exit/train.json")
    assert ended["code"] == 75, ended
    return int("".join(filter(str.isdigit, ended["message"].split("update ")[1].split(",")[0])))


def test_a_model_to_start_from_is_an_input_whose_change_is_seen(clone: Clone) -> None:
    clone.run("git", "checkout", "-q", "--", "params.yaml")
    parent = shutil.copytree(clone.root / "models/averaged", clone.root / "pretrained/parent")
    clone.set({"bpe": {"init_from": "parent"}, "train": {"init_from": "parent", "seed": 9}})
    clone.run("dvc", "repro", "average")
    assert (clone.root / "models/averaged/spm.model").read_bytes() == (parent / "spm.model").read_bytes()
    clone.run("dvc", "add", "pretrained/parent")
    clone.commit("fine-tuning")
    assert clone.run("dvc", "status", "train") == "Data and pipelines are up to date.\n"
    (clone.root / "pretrained/parent/model.safetensors").write_bytes(b"another model")
    status = " ".join(clone.run("dvc", "status", "bpe", "train").split())
    assert status == "bpe: changed deps: modified: pretrained/parent train: changed deps: modified: pretrained/parent"
    clone.run("git", "reset", "-q", "--hard", "HEAD~1")


def test_interrupting_dvc_and_its_stage_commits_nothing(clone: Clone) -> None:
    clone.run("git", "checkout", "-q", "--", "params.yaml")
    clone.set({"train": {"updates": 3000, "save_every": 500, "validate_every": 500, "seed": 3}, "machine": {"devices": 2}})
    locked = (clone.root / "dvc.lock").read_bytes()
    assert stop_a_training(clone, signal.SIGINT, after="update 1 of", repro=True) >= 1
    assert (clone.root / "dvc.lock").read_bytes() == locked


def test_a_training_whose_outputs_dvc_could_not_store_is_not_lost(clone: Clone) -> None:
    """DVC's folder for files of MD5 sums is a file, in the place of a full disk; DVC removes the outputs before it runs the stage again."""
    clone.run("git", "checkout", "-q", "--", "params.yaml")
    clone.set({"train": {"seed": 5}})
    store = clone.root / ".dvc/cache/files/md5"
    kept = store.rename(store.with_name("kept"))
    store.write_bytes(b"")
    clone.run("dvc", "repro", "--single-item", "train", code=255)
    store.unlink()
    kept.rename(store)
    assert "going on after update 30" in clone.run("dvc", "repro", "--single-item", "train")
    assert "going on" not in clone.run("dvc", "repro", "--single-item", "--force", "train")
    assert len(list((clone.root / ".state").glob("*/finished"))) == 2  # This one, and the one that the tests above have kept.
    clone.run("dvc", "repro", "average")
    assert len(list((clone.root / ".state").glob("*/stored"))) == 1
    clone.set({"train": {"seed": 5, "updates": 40}})
    assert "going on after update 30" in clone.run("dvc", "repro", "average")


def test_the_task_of_parsing_runs_through_the_same_stages(clone: Clone) -> None:
    clone.run("git", "checkout", "-q", "--", "params.yaml")
    rules = {"max_words": None, "max_ratio": None, "tree_order": "in-order", "tree_tags": True}
    clone.set({"download": {"corpus": "tiny-trees", "source": "id", "target": "tree"}, "clean": rules, "model": {"architecture": "parser"}})
    decode = {"engine": "torch", "max_extra": 300}
    clone.set({"binarize": {"max_tokens": 200}, "train": {"best_by": "f1"}, "decode": decode, "publish": {"name": "tiny-parser"}})
    try:
        clone.run("dvc", "repro")
        metrics = read_json(clone.root / "results/scores.json")
        outputs, trees = read_aligned(clone.root / "results/decode/test.hyp", clone.root / "data/raw/test.tree")
        assert (clone.root / "data/clean/train.tree").read_text(encoding="utf-8").startswith("XX-")
        assert (metrics["f1"], metrics["lines"]) == (round(score(outputs, trees).values["f1"], 2), 20)
        assert "valid_f1" in read_json(clone.root / "results/training/metrics.json")
        assert "Constituency parsing" in (clone.root / "results/report.html").read_text(encoding="utf-8")
        assert read_json(clone.root / "results/published.json")["name"] == "tiny-parser"
        plots = json.loads(clone.run("dvc", "plots", "show", "--json"))["data"]
        assert {"perplexity", "valid_score", "by_length"} <= set(plots)
    finally:
        clone.run("git", "checkout", "-q", "--", "params.yaml", "dvc.lock")


def test_the_recipe_of_a_student_learns_from_the_translations_of_its_teacher(clone: Clone, tmp_path: Path) -> None:
    """The recipe multi30k-student on the tiny corpus, with a teacher of random weights: one of 30 updates gives only empty lines."""
    clone.run("git", "checkout", "-q", "--", "params.yaml", "dvc.lock")
    teacher = shutil.copytree(random_model(tmp_path), clone.root / "pretrained/teacher")
    translated = "[{translated: {corpus: tiny, model: ../pretrained/teacher, side: target}}]"
    entry = re.sub(r"(?<=train: ).*", translated, CORPUS.replace("name: tiny", "name: tiny-student"))
    (clone.root / "corpora/tiny-student.yaml").write_text(entry, encoding="utf-8")
    clone.run(sys.executable, "-m", "transformer_core.cli", "recipe", "multi30k-student", "--force")
    clone.set(TINY)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16}
    clone.set({"download": {"corpus": "tiny-student"}, "clean": {"max_ratio": None}, "model": layers})
    clone.run("dvc", "repro", "evaluate")
    text = [(clone.root / f"data/raw/train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    translate = ("-m", "transformer_core.cli", "translate", "--model", str(teacher), "--engine", "auto", "--penalty", "power")
    again = clone.run(sys.executable, *translate, stdin="\n".join(text[0][:3]) + "\n").splitlines()
    assert text[1][:3] == again[:3]
    config = read_json(clone.root / "models/averaged/config.json")["model"]
    assert config.items() >= layers.items()
    decoding = read_json(clone.root / "results/decode/statistics.json")
    assert (decoding["engine"], decoding["precision"], decoding["beam"]) == ("ctranslate2", "int8", 1)
    assert (clone.root / "models/averaged/shortlist.safetensors").exists()
    assert read_json(clone.root / "results/scores.json")["lines"] == 20
