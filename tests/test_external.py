import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embedding_metric import write_checkpoint
from tests.waiting import wait_for
from transformer_core.errors import UserError
from transformer_core.external import Scorer

SOURCES, OUTPUTS, REFERENCES = ["a", "b\n"], ["ein Haus", "kein \u2028 Baum"], ["ein Haus", "der Baum"]


def test_one_process_scores_all_batches_also_one_larger_than_a_pipe(tmp_path: Path) -> None:
    with Scorer(write_checkpoint(tmp_path / "metric.pt"), "evaluate.comet") as scorer:
        first = scorer.scores(SOURCES, OUTPUTS, REFERENCES)
        assert first[0] == pytest.approx(1)
        assert first[1] < 0.999
        process = scorer._process
        assert scorer.scores(SOURCES * 3_000, OUTPUTS * 3_000, REFERENCES * 3_000) == pytest.approx(first * 3_000)
        assert scorer._process is process
    assert process is not None
    assert process.poll() is not None


FAULTS = {
    "no-such-command --model x": "evaluate.comet: cannot run 'no-such-command --model x' .* docs/evaluation.md says how to install COMET",
    "sh -c 'read line; echo no memory >&2; exit 3'": "evaluate.comet: the command ended with 3 before it had scored all: no memory",
    "sh -c 'read line; echo 0.5; echo model loaded; cat'": "evaluate.comet: the command must write a number a line, one for each of 2",
    "sh -c 'read line; echo 1; echo nan; cat'": "the command must write a number a line",
}


@pytest.mark.parametrize("command", FAULTS)
def test_a_command_that_fails_is_one_line_and_no_hang(command: str) -> None:
    with Scorer(command, "evaluate.comet") as scorer, pytest.raises(UserError, match=FAULTS[command]) as raised:
        scorer.scores(SOURCES, OUTPUTS, REFERENCES)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("output", ["", ">&-"])
def test_a_stop_is_answered_while_a_command_computes(tmp_path: Path, output: str) -> None:
    command = f"sh -c 'read line; exec {output}; touch {tmp_path}/computes; sleep 600; true'"  # It has a child, which has its pipes.
    with Scorer(command, "train.comet", (tmp_path / "computes").exists) as scorer:
        assert scorer.scores(SOURCES, OUTPUTS, REFERENCES) == []


def test_a_command_that_computes_ends_with_its_killed_parent(tmp_path: Path) -> None:
    code = (
        "import sys; from transformer_core.external import Scorer; scorer = Scorer(sys.argv[1], 'evaluate.comet'); scorer._process = "
        "scorer._started(); print(scorer._process.pid, flush=True); scorer.scores(['a'], ['b'])"
    )
    command = f"{write_checkpoint(tmp_path / 'metric.pt')} 600"
    with subprocess.Popen([sys.executable, "-c", code, command], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the command is still there")
