"""Sweeps: rows, the table, and a sweep that is killed and goes on."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from dvc.repo import Repo

from flows.dvc.worktree import Snapshot, snapshot
from flows.process.runner import StageError
from flows.sweep import Sweep, Trial, main, plan, train, write_table
from flows.sweeps.rows import document_of, grid, rows_of, scale_for
from flows.sweeps.table import About, markdown, pictures, summarize
from tests.clone import Clone, git, tiny_clone
from tests.refusals import refused
from tests.waiting import processes, runs_train, wait_for
from transformer_core import recipes
from transformer_core.config import Machine, Model, Params, check_params, resolve
from transformer_core.files import WORKTREES, write_json, write_text
from transformer_core.presets import TINY


def sections() -> dict[str, Any]:
    return recipes.load("tatoeba").model_dump(mode="json", exclude={"machine"})


def result(row: str, seed: int, bleu: float) -> dict[str, Any]:
    return {
        "row": row, "seed": seed, "parameters": 2_400_000, "updates": 100, "minutes": 1.5, "flops": 2.5e13, "tokens_per_second": 1000,
        "perplexity": 5.0, "valid_score": bleu, "score_name": "BLEU", "score": bleu, "corpus": "c", "signature": "s",
        "curve": [[0.5 * seed, 1.0], [seed, bleu]], "lengths": [[1, 2 * bleu], [6, bleu]],
    }  # fmt: skip


def test_a_scale_divides_each_width_and_nothing_else_and_follows_from_the_recipes_own_width() -> None:
    rows = {row.name: resolve(Model(**row.sections["model"])) for row in rows_of("table3", 4)}
    assert (rows["base"].d_model, rows["base"].layers) == (128, 6)
    assert [getattr(rows["A-h32"], name) for name in ("d_model", "d_ff", "heads", "d_k", "d_v", "dropout")] == [128, 512, 32, 4, 4, 0.1]
    assert rows["C-dmodel1024"].d_k == 32
    assert rows["E-learned"].positions == "learned"
    table2 = {row.name: resolve(Model(**row.sections["model"])) for row in rows_of("table2", 4)}
    assert (table2["transformer"], table2["bytenet"].architecture, table2["recurrent-cho"].d_model) == (TINY, "bytenet", 256)
    assert len(table2) == 1 + len(recipes.BASELINES)
    scales = {"tatoeba": 4, "multi30k": 4, "wmt14-en-de-base": 1, "wmt14-en-de-big": 1}
    assert {recipe: scale_for(recipes.load(recipe)) for recipe in scales} == scales


def test_a_document_is_the_recipe_with_the_rows_changes_and_passes_the_schema() -> None:
    settings = grid(rows_of("params", 1), ["train.warmup=200,400", "model.norm=pre,post", "train.updates=300"])
    assert [row.name for row in settings][1] == "train.warmup=200 model.norm=post"
    tables = grid([*rows_of("table3", 4), *rows_of("table2", 4), *rows_of("parts", 1)], ["train.updates=300"])
    assert tables[0].name == "base"
    for row in (*tables, *settings):
        params = Params.model_validate(document_of(row, sections()))
        assert params.train.updates == 300
        assert params.bpe == recipes.load("tatoeba").bpe
    assert (params.train.warmup, params.model.norm) == (400, "post")
    of_int8 = document_of(rows_of("parts", 1)[0], recipes.load("multi30k-student").model_dump(mode="json", exclude={"machine"}))
    check_params(of_int8)  # PyTorch has no int8.


def test_a_transformer_keeps_the_norm_of_the_recipe_and_other_architectures_have_none() -> None:
    base = sections() | {"model": {"preset": "tiny", "norm": "pre"}}
    norms = {row.name: document_of(row, base)["model"].get("norm") for row in [*rows_of("table3", 4), *rows_of("table2", 4)]}
    assert {name for name, norm in norms.items() if norm is None} == {name.removeprefix("tatoeba-") for name in recipes.BASELINES}
    assert set(norms.values()) == {"pre", None}
    assert not [row.name for row in rows_of("parts", 1) if "," in row.name]  # `--rows` has commas between names.


WRONG = [
    (["table3", "--rows", "base,B-dk1"], "no row is called 'B-dk1'. Did you mean B-dk16?"),
    (["table3", "--recipe", "tatoeva"], "recipe 'tatoeva': no such recipe. Did you mean tatoeba?"),
    (["params", "train.warmup=200,400", "--scale", "4"], "--scale: params has no scale"),
    (["params"], "params: needs settings KEY=V1,V2"),
    (["params", "warmup"], "'warmup' is not KEY=V1,V2"),
    (["params", "train.seed\n=1"], "'train.seed\\n=1' is not KEY=V1,V2"),
    (["params", "warmup=1"], "override 'warmup': must name section and key"),
    (["params", "train.seed=1", "train.seed=2"], "train.seed: the key or a value is given twice"),
    (["params", "train.warmup=200,0o310,400"], "train.warmup: the key or a value is given twice"),
    (["params", "train.seed=[1"], "train.seed:1: not valid YAML"),
    (["params", "train.warmup=200,x"], "params.yaml: train.warmup: must be a valid integer, got 'x'"),
]


def test_wrong_settings_are_one_line_before_anything_runs(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, fault in WRONG:
        assert main(arguments) == 78
        output = capsys.readouterr().err
        assert fault in output, arguments
        assert output.count("\n") == 1
    assert not (clone.root / ".state").exists()


@pytest.fixture(scope="module")
def clean_clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return tiny_clone(tmp_path_factory.mktemp("clean") / "clone")


@pytest.fixture
def clone(clean_clone: Clone, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A clone that is the working directory, and is left as the tests before have made it."""
    monkeypatch.chdir(clean_clone.root)
    return clean_clone


def test_a_key_changes_with_settings_code_and_pretrained_models_alone(clone: Clone) -> None:
    def keys(seeds: str = "1", updates: int = 30) -> list[str]:
        settings = [f"train.seed={seeds}", f"train.updates={updates}"]
        return [trial.key for trial in plan("table3", settings, rows=["base"], scale=16).trials]

    first = keys()
    assert keys(seeds="1,2")[:1] == first != keys(updates=20)
    (clone.root / "notes.txt").write_text("no code\n")
    clone.commit("notes")
    assert keys() == first
    loss = clone.root / "transformer_core/training/loss.py"
    loss.write_text(loss.read_text() + "# changed\n")
    edited = keys()
    assert edited != first
    clone.commit("code")
    assert keys() == edited
    write_text(clone.root / "pretrained/parent/spm.model", "a model")
    assert keys() != edited


def test_minutes_are_as_many_updates_as_this_machine_makes_measured_once_for_all_seeds(clone: Clone) -> None:
    def updates(minutes: float) -> list[int]:
        rows = ["transformer", "recurrent-cho"]
        trials = plan("table2", ["train.seed=1,2"], rows=rows, minutes=minutes).trials
        return [trial.document["train"]["updates"] for trial in trials]

    with refused(78, "--minutes: train.updates is a setting of the sweep"):
        plan("params", ["train.updates=10,20"], minutes=1)
    few, many = updates(100), updates(1000)
    assert (few[0], few[2]) == (few[1], few[3])
    assert all(0 < 10 * less <= more <= 10 * less + 500 for less, more in zip(few, many, strict=True))
    assert len(list((clone.root / ".state/sweeps/rates").iterdir())) == 2


def test_means_and_intervals_are_those_of_students_t() -> None:
    results = [result("base", seed, bleu) for seed, bleu in ((1, 10.0), (2, 12.0), (3, 14.0))]
    table = summarize([*results, result("big", 1, 20.0)])
    assert list(table["row"]) == ["base", "big"]
    assert table["score"].tolist() == [12.0, 20.0]
    # Two degrees of freedom: t = 4.3027; the standard deviation is 2.
    assert table["score_interval"][0] == pytest.approx(4.3027 * 2 / math.sqrt(3), rel=1e-4)
    assert math.isnan(table["score_interval"][1])


def test_the_table_says_what_it_is_of_and_has_the_papers_figures() -> None:
    results = [result("base", 1, 10.0), result("base", 2, 12.0), result("B-dk16 train.updates=100", 1, 9.0)]
    table = summarize(results, with_paper=True)
    text = markdown(table, results, About("table3", "tatoeba", 4, ()))
    assert "every width of the paper is divided by 4" in text
    assert "| base | 2 | 2.40 | 1.5 | 2.5e+13 | 5.00 ± 0.00 | 11.00 ± 12.71 | 11.00 ± 12.71 | 65 | 4.92 | 25.8 |" in text
    assert "| B-dk16 train.updates=100 | 1 | 2.40 | 1.5 | 2.5e+13 | 5.00 | 9.00 | 9.00 | 58 | 5.16 | 25.1 |" in text
    assert table["paper_perplexity"].tolist() == [4.92, 5.16]
    results[0] |= {"updates": 2000, "corpus": "d"}
    text = markdown(summarize(results), results, About("table2", "multi30k", 1, ()))
    assert "corpus d or c, 100 to 2,000 updates.\n" in text


def test_the_pictures_have_a_point_for_each_row_and_a_curve_of_the_means_over_its_seeds() -> None:
    results = [result("base", 1, 10.0), result("base", 3, 12.0), result("big", 1, 20.0)]
    drawn = {name: figure.axes[0].get_lines() for name, figure in pictures(summarize(results), results).items()}
    assert list(drawn["score"][0].get_xdata()) == [11.0, 20.0]
    assert [line.get_label() for line in drawn["curve"]] == ["base", "big"]
    assert drawn["curve"][0].get_xydata().tolist() == [[1.0, 1.0], [2.0, 11.0]]
    assert drawn["lengths"][0].get_xydata().tolist() == [[1.0, 22.0], [6.0, 11.0]]


@pytest.mark.usefixtures("clone")
def test_a_row_has_the_means_over_its_seeds_in_each_sweep_that_shows_it() -> None:
    of_one, of_two = (plan("params", ["train.warmup=200", f"train.seed={seeds}"]) for seeds in ("1", "1,2"))
    assert of_one.trials[0].key == of_two.trials[0].key
    for trial in of_two.trials:
        write_json(trial.result, result("of another sweep", trial.seed, 10.0))
    assert "| params | 2 |" in write_table(of_two)
    assert "| params | 1 |" in write_table(of_one)
    assert "| 2 |" in (of_two.folder / "table.md").read_text(encoding="utf-8")
    assert all("BLEU test" in (of_two.folder / f"{name}.svg").read_text(encoding="utf-8") for name in ("score", "lengths"))
    of_two.trials[1].result.write_text("{")
    with refused(65, r"\.json: not valid JSON \(.+\)\. Remove it, then run the sweep again\.$"):
        write_table(of_two)


def test_each_grid_has_a_folder_of_its_own() -> None:
    def folder_of(*settings: str) -> str:
        return Sweep((), Snapshot("", "", (), Path()), About("params", "multi30k", 1, settings)).folder.as_posix()

    assert folder_of("train.warmup=200,400", "train.seed=1") == "results/sweeps/params-train.warmup=200,400-train.seed=1"
    path, other = (folder_of(f"download.corpus=../{name}") for name in ("a b", "a/b"))
    assert (path[:-8], path != other) == ("results/sweeps/params-download.corpus=.._a_b-", True)


STAGES = """
stages:
  bpe:
    cmd: mkdir -p .state/exit && echo '{"code":0,"message":"","remedy":""}' > .state/exit/bpe.json && touch bpe.txt
    deps: [pretrained/parent]
    outs: [bpe.txt]
  train: {cmd: kill -9 $$, deps: [bpe.txt], outs: [train.txt]}
  evaluate: {cmd: touch scores.txt, deps: [train.txt], outs: [scores.txt]}
"""


@pytest.mark.usefixtures("empty_directory")
def test_the_reason_of_a_sweep_names_the_stage_that_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """In a repository of three stages, of which something kills the second."""
    git("init", "-q")
    write_text(Path("pretrained/parent/spm.model"), "a model")
    Repo.init().add("pretrained/parent")
    Path("dvc.yaml").write_text(STAGES)
    git("add", "-A")
    git("commit", "-q", "-m", "a")
    base = Trial("base", 1, {}, "0123456789abcdef")
    with pytest.raises(StageError, match=r"^train: failed to reproduce 'train': .*exited with -9 \(exit code 137\)$"):
        train(base, snapshot(), Machine(patience_hours=1e-6))
    (folder,) = WORKTREES.glob("*/")
    assert (folder / ".state/exit/bpe.json").exists()
    written = capsys.readouterr().err
    assert "Running stage 'bpe':" in written
    assert "Trying again in 0 seconds" in written
    assert "Updating lock file" not in written  # A worktree is removed at the end, with its dvc.lock.


COMMAND = [sys.executable, "-m", "flows.sweep", "table3", "--rows", "base,B-dk16", "--scale", "16"]


def results_of(clone: Clone) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (clone.root / ".state/sweeps/results").glob("*.json")}


def started(clone: Clone, *options: str) -> "subprocess.Popen[bytes]":
    with (clone.root.parent / "output").open("w", encoding="utf-8") as output:
        return subprocess.Popen([*COMMAND, *options], cwd=clone.root, env=clone.environment, stdout=subprocess.DEVNULL, stderr=output)


def trainings(clone: Clone) -> list[psutil.Process]:
    """The stages train that run in workspaces of a clone."""
    return processes(lambda one: runs_train(one) and Path(one.cwd()).is_relative_to(clone.root))


@pytest.mark.slow  # a minute or two: two trainings through the pipeline
def test_a_sweep_is_trained_by_several_processes_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    clone = tiny_clone(tmp_path / "clone")
    workspaces = clone.root / WORKTREES
    with started(clone) as first:
        wait_for(lambda: trainings(clone), process=first)
        with started(clone) as second:  # It takes the second row, because the first process has the first one.
            said = "this run is running in process"
            wait_for(lambda: said in (tmp_path / "output").read_text(encoding="utf-8") or results_of(clone), process=second)
            second.terminate()
            assert second.wait(timeout=60) == 75
            assert "stopped by SIGTERM" in (tmp_path / "output").read_text(encoding="utf-8")
        wait_for(lambda: results_of(clone), process=first)
        below = wait_for(lambda: trainings(clone), process=first)
        first.kill()
    assert not psutil.wait_procs(below, timeout=60)[1]
    before = results_of(clone)
    assert len(before) == 1
    for workspace in workspaces.glob("*/"):
        (workspace / ".dvc/tmp/rwlock").write_text("")  # As when DVC is killed while it writes them.
        (workspace / "dvc.lock").write_text("")

    output = clone.run(*COMMAND)
    assert "2 trainings, 1 of them done, 1 to run" in output
    assert results_of(clone).items() >= before.items()
    assert not list(workspaces.glob("*/"))
    folder = clone.root / "results/sweeps/table3---rows=base,B-dk16---scale=16"
    rows = [line.split(" | ")[0] for line in (folder / "table.md").read_text().splitlines()]
    assert rows[-2:] == ["| base", "| B-dk16"]
    assert {file.name for file in folder.glob("*.svg")} == {"score.svg", "curve.svg", "lengths.svg"}
    output = clone.run(*COMMAND)
    assert "2 trainings, 2 of them done, 0 to run" in output
