"""python -m flows.compare, on runs that went through the sender into a real MLflow record."""

import os
import socket
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from flows.compare import main
from flows.record import server
from flows.record.run import NAME, RunRecord, flatten
from flows.record.sending import sync
from flows.record.server import connect, experiment_id
from flows.stages import evaluate as stage
from tests.flows.publishing import training
from tests.flows.test_evaluate_stage import HYPOTHESES, TARGET, lay_out
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.corpus.text import write_lines

SOURCE = ["A man rides a bike.", "Two dogs play in the snow.", "The woman has not read the book."]
REFERENCES = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen."]
GOOD = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch gelesen."]
BAD = ["Ein Mann fährt Rad.", "Zwei Katzen schlafen.", "Die Frau hat das Buch gelesen."]

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


def evaluate(name: str, fingerprint: str, hypotheses: list[str] | None, beam: int = 4, **parameters: str) -> None:
    """Record an evaluation as the stage does."""
    record = RunRecord(id=name, parent=fingerprint, tags={NAME: name, "kind": "evaluation"})
    digest = sha256(Path("data/raw/test.de").read_bytes()).hexdigest()
    record.parameters = flatten({"decode": {"beam": beam}, "references_sha256": digest, **parameters})
    record.measure(40, {"bleu": 50.0 + beam})
    if hypotheses is not None:
        write_lines(Path("results/decode/test.hyp"), hypotheses)
        record.attach_files([Path("results/decode/test.hyp")])
        record.attach_files([Path("data/raw/test.en")], "sources")
        record.attach_files([Path("data/raw/test.de")], "references")
    record.end()
    sync(store())


def train(fingerprint: str, warmup: int = 400, ends: tuple[int, ...] = (40,), identity: str = "", name: str = "", **valid: float) -> None:
    record = RunRecord(id=identity or fingerprint, tags={NAME: name or fingerprint, "fingerprint": fingerprint})
    record.measure(20, valid, context="valid")
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


def test_two_evaluations_of_one_training_are_named_by_their_own_names(compare: Compare) -> None:
    train("abc123")
    evaluate("evaluation-1", "abc123", BAD, beam=4)
    evaluate("evaluation-2", "abc123", GOOD, beam=8)
    out = compare("evaluation-1", "evaluation-2")
    assert ["decode.beam", "4", "8"] in [line.split() for line in out.split("\n")]
    assert "train.warmup" not in out
    assert "The settings are the same." in compare("abc123", "evaluation-2")  # The training's latest.


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(compare: Compare) -> None:
    train("abc123")
    evaluate("evaluation-1", "abc123", BAD)
    identity = training(connect(store()), "abc123").info.run_id
    for run in (identity, identity[:8]):
        assert "Largest gains of B over A by chrF2: none" in compare(run, "evaluation-1")


def test_an_evaluation_whose_training_was_recorded_elsewhere_is_compared(compare: Compare) -> None:
    evaluate("evaluation-1", "abc123", BAD)
    evaluate("evaluation-2", "def456", GOOD, beam=8)
    assert ["decode.beam", "4", "8"] in [line.split() for line in compare("abc123", "evaluation-2").split("\n")]


def test_a_training_forced_again_is_the_latest(compare: Compare) -> None:
    for evaluation, hypotheses in (("evaluation-1", BAD), ("evaluation-2", GOOD)):
        train("abc123", identity=f"of-{evaluation}")
        evaluate(evaluation, f"of-{evaluation}", hypotheses)
    RunRecord(id="stopped", tags={NAME: "abc123", "fingerprint": "abc123"}).end("KILLED")
    sync(store())
    assert compare("abc123", "evaluation-1").startswith("A is evaluation-2, of abc123 (")


def test_a_repeated_training_has_the_evaluation_that_stage_evaluate_did_not_repeat(compare: Compare) -> None:
    """The third training, with other code, has other scores."""
    for identity, nll in (("first", 2.0), ("second", 2.0), ("third", 1.5)):
        train("abc123", identity=identity, nll=nll)
        evaluate("evaluation-1", "first", GOOD)
        if nll == 2.0:
            assert compare("abc123", "evaluation-1").startswith("A is evaluation-1, of abc123 (")
    assert (
        compare("abc123", "evaluation-1", code=65)
        == "run abc123: a training without an evaluation. Make one with: dvc repro --force --single-item evaluate"
    )


LATEST = "The latest: 'row-1', 'evaluation-3', 'evaluation-2', 'evaluation-1', 'abc789'."
REFUSED = [
    ("nowhere", 78, "run 'nowhere': MLflow has no run of this id, name or fingerprint. " + LATEST),
    ("a_c%3", 78, "run 'a_c%3': MLflow has no run of this id, name or fingerprint. " + LATEST),
    ("", 78, "run '': MLflow has no run of this id, name or fingerprint. " + LATEST),
    ("abc", 78, "run abc: may be abc123, abc789. Give more of the name, or the run's id."),
    ("abc789", 65, "run abc789: a training without an evaluation. Make one with: dvc repro --force --single-item evaluate"),
    ("evaluation-2", 65, "run evaluation-2: holds no test.hyp. Send what is left with: python -m flows.tracking sync"),
    ("evaluation-3", 65, "runs evaluation-1, of abc123 and evaluation-3, of abc123: were scored against different references. "
     "Name two runs with the same test set."),
    ("row-1", 78, "run row-1: neither a training nor an evaluation. Name one of them, or one of its children in MLflow."),
]  # fmt: skip


def test_a_name_matches_without_its_score_and_a_killed_run_only_if_no_finished_one_does(compare: Compare) -> None:
    RunRecord(id="killed", tags={NAME: "mine, 4 layers", "fingerprint": "def456"}).end("KILLED")
    sync(store())
    train("abc123", name="54.00 BLEU, mine, 4 layers")
    evaluate("evaluation-1", "abc123", BAD)
    assert compare("mine", "abc").startswith("A is evaluation-1, of 54.00 BLEU, mine, 4 layers (")
    assert compare("def456", "abc", code=65).startswith("run def456: ")


def test_a_run_that_cannot_be_compared_is_one_line(compare: Compare) -> None:
    """The last run is the row of a sweep."""
    train("abc123")
    train("abc789")
    evaluate("evaluation-1", "abc123", GOOD)
    evaluate("evaluation-2", "abc123", None)
    evaluate("evaluation-3", "abc123", BAD, references_sha256="0" * 64)
    RunRecord(id="row-1", parent="abc123", tags={NAME: "row-1", "kind": "row"}).end()
    sync(store())
    for run, code, line in REFUSED:
        assert compare("evaluation-1", run, code=code) == line


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
