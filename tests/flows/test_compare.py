"""python -m flows.compare, on runs that went through the journal into a real MLflow record."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from flows.compare import main
from flows.record.journal import Journal
from flows.record.sending import sync
from flows.record.server import connect, experiment_id, find_training
from flows.stages import evaluate as stage
from tests.flows.test_evaluate_stage import HYPOTHESES, TARGET, lay_out
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.corpus.text import write_lines
from transformer_core.errors import ExitCode
from transformer_core.files import write_json

SOURCE = ["A man rides a bike.", "Two dogs play in the snow.", "The woman has not read the book."]
REFERENCES = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen."]
GOOD = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch gelesen."]
BAD = ["Ein Mann fährt Rad.", "Zwei Katzen schlafen.", "Die Frau hat das Buch gelesen."]

Evaluate = Callable[..., None]


@pytest.fixture
def evaluate(mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """A repository with a test set, and what records an evaluation in it as the stage does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    Path("params.yaml").write_text(recipes.read("synthetic"), encoding="utf-8")
    write_json(Path("data/raw/manifest.json"), {"source": "en", "target": "de"})
    write_lines(Path("data/raw/test.en"), SOURCE)
    write_lines(Path("data/raw/test.de"), REFERENCES)

    def recorded(name: str, fingerprint: str, hypotheses: list[str] | None, beam: int = 4, **parameters: str) -> None:
        journal = Journal(name, parent=fingerprint)
        journal.tags({"kind": "evaluation"})
        digest = sha256(Path("data/raw/test.de").read_bytes()).hexdigest()
        journal.parameters({"decode": {"beam": beam}, "references_sha256": digest, **parameters})
        journal.metrics(40, {"bleu": 50.0 + beam})
        if hypotheses is not None:
            write_lines(Path("results/decode/test.hyp"), hypotheses)
            journal.artifact(Path("results/decode/test.hyp"))
        journal.end()
        sync(mlflow_store)

    return recorded


def train(store: str, fingerprint: str, warmup: int) -> None:
    journal = Journal(fingerprint)
    journal.parameters({"train": {"warmup": warmup, "updates": 40}})
    journal.end()
    sync(store)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return code, err.rstrip("\n")


def test_two_trainings_are_compared_by_their_evaluations(evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(mlflow_store, "abc123", warmup=400)
    train(mlflow_store, "def456", warmup=800)
    evaluate("evaluation-1", "abc123", BAD)
    evaluate("evaluation-2", "def456", GOOD)
    assert main(["abc", "def456"]) == 0
    heading, settings, metrics, scores, gains, gained, losses = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert [line.split(" (")[0] for line in heading.split("\n")] == ["A is evaluation-1", "B is evaluation-2"]
    assert [line.split() for line in settings.split("\n")] == [["setting", "A", "B"], ["train.warmup", "400", "800"]]
    assert ["bleu", "54.00", "54.00"] in [line.split() for line in metrics.split("\n")]
    assert scores.split("\n")[0].split()[:2] == ["3", "lines"]
    assert gains == "B better than A by most chrF2:"
    assert [line[13:] for line in gained.split("\n")[1:]] == [SOURCE[1], REFERENCES[1], BAD[1], GOOD[1]]
    assert losses == "A better than B by most chrF2: no sentence"


def test_what_stage_evaluate_records_can_be_compared(
    mlflow_store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    lay_out(Path())
    for hypotheses in (HYPOTHESES, TARGET):
        write_lines(Path("results/decode/test.hyp"), hypotheses)
        stage.run(load_params())
        sync(mlflow_store)
    client = connect(mlflow_store)
    found = client.search_runs([experiment_id(client)], "tags.kind = 'evaluation'", order_by=["attributes.start_time ASC"])
    capsys.readouterr()
    for split in ("test.en", "test.de", "manifest.json"):  # MLflow has kept the test set.
        Path("data/raw", split).unlink()
    assert main([run.info.run_id for run in found]) == 0
    out = capsys.readouterr().out
    assert ["BLEU", "66.97", "100.00", "+33.03"] in [line.split()[:4] for line in out.split("\n")]
    assert out.count(" in A, 100.0 in B") == 2


def test_two_evaluations_of_one_training_are_named_by_their_own_names(
    evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(mlflow_store, "abc123", warmup=400)
    evaluate("evaluation-1", "abc123", BAD, beam=4)
    evaluate("evaluation-2", "abc123", GOOD, beam=8)
    assert main(["evaluation-1", "evaluation-2"]) == 0
    out = capsys.readouterr().out
    assert ["decode.beam", "4", "8"] in [line.split() for line in out.split("\n")]
    assert "train.warmup" not in out
    assert main(["abc123", "evaluation-2"]) == 0  # The training's latest.
    assert "The settings are the same." in capsys.readouterr().out


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(mlflow_store, "abc123", warmup=400)
    evaluate("evaluation-1", "abc123", BAD)
    training = find_training(connect(mlflow_store), "abc123")
    assert training is not None
    assert main([training.info.run_id, "evaluation-1"]) == 0
    assert main([training.info.run_id[:8], "evaluation-1"]) == 0
    assert "B better than A by most chrF2: no sentence" in capsys.readouterr().out


def test_an_evaluation_whose_training_was_recorded_elsewhere_is_compared(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("evaluation-1", "abc123", BAD)
    evaluate("evaluation-2", "def456", GOOD, beam=8)
    assert main(["abc123", "evaluation-2"]) == 0
    assert ["decode.beam", "4", "8"] in [line.split() for line in capsys.readouterr().out.split("\n")]


def test_a_training_forced_again_is_the_latest(evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(mlflow_store, "abc123", warmup=400)
    evaluate("evaluation-1", "abc123", BAD)
    train(mlflow_store, "abc123", warmup=400)
    evaluate("evaluation-2", "abc123", GOOD)
    assert main(["abc123", "evaluation-1"]) == 0
    assert capsys.readouterr().out.startswith("A is evaluation-2 ")


REFUSED = [
    ("nowhere", 78, "run nowhere: MLflow has no run of this id, name or fingerprint"),
    ("it's", 78, 'run "it\'s": no run has such a name'),
    ("", 78, "run '': no run has such a name"),
    ("abc", 78, "run abc: may be abc123, abc789. Write more of it, or the run's id."),
    ("abc789", 65, "run abc789: a training without an evaluation. Make one with: dvc repro evaluate"),
    ("evaluation-2", 65, "run evaluation-2: holds no test.hyp. Send what is left with: python -m flows.tracking sync"),
    (
        "evaluation-3",
        65,
        "runs evaluation-1 and evaluation-3: were scored against different references. Name two runs with the same test set.",
    ),
]


def test_a_run_that_cannot_be_compared_is_one_line(evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(mlflow_store, "abc123", warmup=400)
    train(mlflow_store, "abc789", warmup=400)
    evaluate("evaluation-1", "abc123", GOOD)
    evaluate("evaluation-2", "abc123", None)
    evaluate("evaluation-3", "abc123", BAD, references_sha256="0" * 64)
    for run, code, line in REFUSED:
        assert refused(capsys, "evaluation-1", run) == (code, line)


def test_a_run_from_before_references_were_recorded_is_refused(
    evaluate: Evaluate, mlflow_store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal("evaluation-0", parent="abc123")
    journal.tags({"kind": "evaluation"})
    write_lines(Path("results/decode/test.hyp"), GOOD)
    journal.artifact(Path("results/decode/test.hyp"))
    sync(mlflow_store)
    evaluate("evaluation-1", "abc123", GOOD)
    code, line = refused(capsys, "evaluation-0", "evaluation-1")
    assert (code, line) == (65, "run evaluation-0: has no hash of its references. Run stage evaluate for it again.")


def test_runs_whose_test_set_was_not_kept_are_compared_with_that_of_data_raw_alone(
    evaluate: Evaluate, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate("evaluation-1", "abc123", GOOD)
    write_lines(Path("data/raw/test.de"), BAD)
    line = (
        "run evaluation-1: its test set is neither in MLflow nor in data/raw. "
        "Check out the commit and the data of that run: git checkout, dvc checkout."
    )
    assert refused(capsys, "evaluation-1", "evaluation-1") == (65, line)
    Path("data/raw/manifest.json").unlink()
    assert refused(capsys, "evaluation-1", "evaluation-1") == (65, line)


@pytest.mark.usefixtures("evaluate")
def test_mlflow_being_away_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, line = refused(capsys, "evaluation-1", "evaluation-2")
    assert code == ExitCode.UNAVAILABLE
    assert line.startswith("MLflow at http://127.0.0.1:9 is away: ")
