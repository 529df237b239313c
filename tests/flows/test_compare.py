"""python -m flows.compare, on runs that went through the sender into a real MLflow record."""

import os
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partialmethod
from hashlib import sha256
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.compare import main
from flows.process.paths import MANIFEST
from flows.record import server
from flows.record.documents import DECODING
from flows.record.run import EXIT_CODE, NAME, RunRecord, flatten
from flows.record.sending import sync
from flows.record.server import connect, experiment_id
from flows.stages import evaluate as stage
from tests.cli.test_score import REFERENCES, SOURCE
from tests.cli.test_score import A as BAD
from tests.flows.publishing import add_losses, training
from tests.flows.test_evaluate_stage import HYPOTHESES, TARGET, lay_out, recorded
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.corpus.text import write_lines, write_pairs
from transformer_core.files import read_json, write_json

GOOD = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch gelesen."]

Compare = Callable[..., str]


@pytest.fixture
def compare(mlflow_store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """The output of `python -m flows.compare`, or its error, which is one line, in a repository with a test set."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    Path("params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    write_lines(Path("data/raw/test.en"), SOURCE)
    write_lines(Path("data/raw/test.de"), REFERENCES)

    def compared(*runs: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(list(runs)) == code
        out, err = capsys.readouterr()
        assert (bool(out), err.count("\n")) == ((False, 1) if code else (True, 0))
        return out or err.rstrip("\n")

    return compared


def store() -> str:
    return os.environ["MLFLOW_TRACKING_URI"]


def evaluate(name: str, fingerprint: str, hypotheses: list[str] | None, beam: int = 4, references: list[str] = REFERENCES) -> None:
    """Record an evaluation as the stage does."""
    record = RunRecord(id=name, parent=fingerprint, tags={NAME: name, "kind": "evaluation"})
    record.parameters = flatten({"decode": {"beam": beam}})
    record.measure(40, {"bleu": 50.0 + beam})
    if hypotheses is not None:
        write_lines(Path("results/decode/test.hyp"), hypotheses)
        record.attach_files([Path("results/decode/test.hyp")])
        record.attach_files([Path("data/raw/test.en")], "sources")
        write_lines(Path("data/raw/test.de"), references)
        record.attach_files([Path("data/raw/test.de")], "references")
    record.end()
    sync(store())


def train(
    fingerprint: str, warmup: int = 400, ends: tuple[int, ...] = (40,), identity: str = "", name: str = "", losses: Sequence[float] = ()
) -> None:
    record = RunRecord(id=identity or fingerprint, tags={NAME: name or fingerprint, "fingerprint": fingerprint})
    if losses:
        record.write()
        add_losses(record, losses)
    for updates in ends:
        record.parameters = flatten({"train": {"warmup": warmup, "updates": updates}})
        record.end()
        sync(store())


def test_two_trainings_are_compared_by_their_evaluations(compare: Compare) -> None:
    train("abc123")
    train("def456", warmup=800, ends=(40, 60))
    evaluate("evaluation-1", "abc123", BAD)
    evaluate("evaluation-2", "def456", GOOD)
    heading, settings, metrics, scores, gains, gained, losses = compare("abc", "def456").rstrip("\n").split("\n\n")
    assert [line.split(" (")[0] for line in heading.split("\n")] == ["A is evaluation-1, of abc123", "B is evaluation-2, of def456"]
    expected = [["setting", "A", "B"], ["train.updates", "40", "60"], ["train.warmup", "400", "800"]]
    assert [line.split() for line in settings.split("\n")] == expected
    assert ["bleu", "54.00", "54.00"] in [line.split() for line in metrics.split("\n")]
    assert scores.split("\n")[0].split()[:2] == ["3", "lines"]
    assert gains == "Largest gains of B over A by chrF2:"
    assert [line[13:] for line in gained.split("\n")[1:]] == [SOURCE[1], REFERENCES[1], BAD[1], GOOD[1]]
    assert losses == "Largest gains of A over B by chrF2: none"


def test_what_stage_evaluate_records_can_be_compared(compare: Compare) -> None:
    lay_out(Path())
    for hypotheses in (HYPOTHESES, TARGET):
        write_lines(Path("results/decode/test.hyp"), hypotheses)
        stage.run(load_params())
        sync(store())
    client = connect(store())
    found = client.search_runs([experiment_id(client)], "tags.kind = 'evaluation'", order_by=["attributes.start_time ASC"])
    for split in ("test.en", "test.de"):  # MLflow has kept the test set.
        Path("data/raw", split).unlink()
    out = compare(*(run.info.run_id for run in found))
    assert ["BLEU", "66.97", "100.00", "+33.03"] in [line.split()[:4] for line in out.split("\n")]
    assert out.count(" in A, 100.0 in B") == 2


def test_a_test_set_of_two_names_is_compared(compare: Compare) -> None:
    """As after a training goes on with text of another domain: the test set of one corpus is a further one of the other."""
    lay_out(Path())
    write_lines(Path("results/decode/test_captions.hyp"), HYPOTHESES)
    write_pairs(Path("data/raw/test_captions.en"), Path("data/raw/test_captions.de"), zip(SOURCE, REFERENCES, strict=True))
    manifest = read_json(MANIFEST)
    write_json(MANIFEST, manifest | {"splits": manifest["splits"] | {"test_captions": manifest["splits"]["test"]}})
    write_json(DECODING, read_json(DECODING) | {"test_captions": read_json(DECODING)["test"]})
    stage.run(load_params())
    lay_out(Path())
    write_pairs(Path("data/raw/test.en"), Path("data/raw/test.de"), zip(SOURCE, REFERENCES, strict=True))
    write_lines(Path("results/decode/test.hyp"), REFERENCES)
    Path("data/raw/test_captions.de").unlink()
    stage.run(load_params())
    sync(store())
    before, after = (record.tags[NAME] for record in recorded())
    out = compare(before, after)
    assert out.count("3 lines ") == 1
    assert "\n\nTest set: test_captions of A, test of B\n3 lines" in out
    assert "100.00" in out.partition("Test set: ")[2].split("\n")[2]


def test_two_evaluations_of_one_training_are_named_by_their_own_names(compare: Compare) -> None:
    train("abc123")
    evaluate("evaluation-1", "abc123", BAD, beam=4)
    evaluate("evaluation-2", "abc123", GOOD, beam=8)
    out = compare("evaluation-1", "evaluation-2")
    assert ["decode.beam", "4", "8"] in [line.split() for line in out.split("\n")]
    assert "train.warmup" not in out
    identity = training(connect(store()), "abc123").info.run_id
    for run in ("abc123", identity, identity[:8]):  # The training's latest evaluation.
        assert "The settings are the same." in compare(run, "evaluation-2")


def test_a_training_forced_again_is_the_latest(compare: Compare) -> None:
    for evaluation, hypotheses in (("evaluation-1", BAD), ("evaluation-2", GOOD)):
        train("abc123", identity=f"of-{evaluation}")
        evaluate(evaluation, f"of-{evaluation}", hypotheses)
    RunRecord(id="stopped", tags={NAME: "abc123", "fingerprint": "abc123"}).end("KILLED")
    sync(store())
    assert compare("abc123", "evaluation-1").startswith("A is evaluation-2, of abc123 (")


LATEST = "The latest: 'evaluation-3', 'evaluation-2', 'evaluation-1', 'abc789', 'abc123'."
REFUSED = [
    *((run, 78, f"run '{run}': MLflow has no run of this id, name or fingerprint. {LATEST}") for run in ("nowhere", "a_c%3", "")),
    ("abc", 78, "run abc: may be abc123, abc789. Give more of the name, or the run's id."),
    ("abc789", 65, "run abc789: has no evaluation. Send what is left with: python -m flows.tracking sync"),
    ("evaluation-2", 65, "run evaluation-2: holds no test.hyp. Send what is left with: python -m flows.tracking sync"),
    ("evaluation-3", 65, "runs evaluation-1, of abc123 and evaluation-3, of abc123: were scored against different references. "
     "Name two runs with the same test set."),
]  # fmt: skip


def test_runs_that_are_not_on_the_first_page_of_mlflows_answer_are_found(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MlflowClient, "search_runs", partialmethod(MlflowClient.search_runs, max_results=1))
    for number in (1, 2):
        train(f"run{number}")
        evaluate(f"evaluation-{number}", f"run{number}", GOOD)
    assert compare("run1", "run2").startswith("A is evaluation-1, of run1 (")
    assert compare("--experiment", server.MLFLOW_EXPERIMENT, "--page", "page.html") == "page.html: 2 runs\n"
    client = connect(store())
    client.rename_experiment(experiment_id(client), "another")
    assert compare("--experiment", "another", "--page", "page.html") == "page.html: 2 runs\n"


def test_a_name_matches_without_its_score_and_a_killed_run_only_if_no_finished_one_does(compare: Compare) -> None:
    RunRecord(id="killed", tags={NAME: "mine, 4 layers", "fingerprint": "def456"}).end("KILLED")
    sync(store())
    train("abc123", name="54.00 BLEU, mine, 4 layers")
    evaluate("evaluation-1", "abc123", BAD)
    assert compare("mine", "abc").startswith("A is evaluation-1, of 54.00 BLEU, mine, 4 layers (")
    assert compare("def456", "abc", code=65).startswith("run def456: ")


def test_a_run_that_cannot_be_compared_is_one_line(compare: Compare) -> None:
    train("abc123")
    train("abc789")
    evaluate("evaluation-1", "abc123", GOOD)
    evaluate("evaluation-2", "abc123", None)
    evaluate("evaluation-3", "abc123", BAD, references=GOOD)
    sync(store())
    for run, code, line in REFUSED:
        assert compare("evaluation-1", *filter(None, [run]), code=code) == line
    assert compare("evaluation-1", "--experiment", "en-dee", "--page", "p.html", code=78).startswith("--experiment: MLflow has no 'en-dee'")
    assert compare("evaluation-1", "--sweep", "table3", code=78).startswith("--sweep: only a page compares more than two")


def test_a_server_of_mlflow_that_is_away_or_silent_is_asked_once(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further tries would each wait for the limit again."""
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
            assert compare("evaluation-1", "evaluation-2", code=69).startswith(f"MLflow at http://127.0.0.1:{port} is unreachable: ")
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_page_has_many_runs_and_its_own_script_alone_may_run(compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (hypotheses, warmup) in enumerate(((BAD, 400), (GOOD, 800), (GOOD, 400)), start=1):
        train(f"run{number}", warmup=warmup, losses=[3.0, 2.0 / number])
        evaluate(f"evaluation-{number}", f"run{number}", hypotheses)
    write_lines(Path("results/sweeps/params/runs.txt"), ["run2", "run3"])
    assert compare("run1", "--sweep", "params", "--page", "page.html") == "page.html: 3 runs\n"
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count('data-value="0.5"') == 3  # Seconds of training, without those in which it stood still.
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script
    digest = b64encode(sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)]
    (base,) = (row for row in rows if "base" in row)
    assert base[:4] == ["1", "evaluation-1,", "of", "run1"]
    shown = [row for row in rows if row[:1] in (["2"], ["3"]) and "of" in row]
    assert [row[1] for row in shown] == ["evaluation-2,", "evaluation-3,"]
    assert all(f"{float(row[4]) - float(base[4]):+.2f}" in row for row in shown)
    assert ["2", "800"] in rows  # train.warmup, the one setting that differs.
    assert f"<mark>{BAD[1].split()[1]}" in page
    assert page.count("data:image/svg+xml") == 1  # The loss; nothing else was recorded.
    for number, code in enumerate(("75", "137", "75")):
        RunRecord(id=f"stopped-{number}", tags={NAME: f"stopped-{number}", EXIT_CODE: code}).end("KILLED" if code == "75" else "FAILED")
    sync(store())
    assert compare("--experiment", server.MLFLOW_EXPERIMENT, "--days", "7", "--page", "page.html") == "page.html: 3 runs\n"
    page = re.sub(r"<[^>]+>", " ", Path("page.html").read_text(encoding="utf-8").partition("Trainings that did not end")[2])
    assert page.split()[4:10] == ["75", "2", "stopped-2", "137", "1", "stopped-1"]
    assert "no runs" in compare("--experiment", server.MLFLOW_EXPERIMENT, "--days", "1e-9", "--page", "page.html", code=78)
    assert "--page FILE" in compare("run1", "run2", "run3", code=78)
    assert compare("--sweep", "none", "--page", "page.html", code=78).startswith("results/sweeps/none/runs.txt: no such file")
