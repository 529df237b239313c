"""Samples of the use of machines: CPUs, memory and GPUs of every node of a training."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.record import usage
from flows.record.run import RunRecord
from flows.record.usage import sampling
from tests.waiting import wait_for

STATE = Path(".state/f00d")
Samples = list[tuple[int, dict[str, float]]]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "SECONDS_BETWEEN_SAMPLES", 0.01)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """Of the training with the state `STATE`."""
    monkeypatch.chdir(tmp_path)
    record = RunRecord(id="c0ffee")
    record.write()
    STATE.mkdir(parents=True)
    (STATE / "run").write_text(record.id)
    return record


def samples(record: RunRecord, node: int = 0) -> Samples:
    """Step and values of each sample."""
    tables = [table for table in record.tables() if table.path.name == f"machine-{node}.csv"]
    return [(step, values) for table in tables for step, _, values in record.rows(table, set())]


def test_the_use_of_the_machine_is_sampled_until_the_block_ends_and_after_a_resume(record: RunRecord) -> None:
    for begun in (0, 2):
        with sampling(STATE):
            wait_for(lambda: len(samples(record)) >= begun + 2)  # noqa: B023
        assert "usage" not in [thread.name for thread in threading.enumerate()]
        taken = samples(record)
        assert [step for step, _ in taken] == list(range(len(taken)))
        table = record.folder / "machine-0.csv"
        table.write_text("\n".join(table.read_text().splitlines()[:3]) + "\n2,0.0")  # Two samples; a kill has cut off the third.
    _, values = samples(record)[0]
    assert values["system/system_memory_usage_megabytes"] > 0
    assert all(0 <= values[f"system/{name}_percentage"] <= 100 for name in ("cpu_utilization", "system_memory_usage"))


def test_sampling_goes_on_after_a_moment_in_which_the_table_could_not_be_written(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, taken, measured = record.folder / "machine-0.csv", list[int](), usage._usage
    table.mkdir()
    monkeypatch.setattr(usage, "_usage", lambda: taken.append(1) or measured())
    with sampling(STATE):
        wait_for(lambda: len(taken) > 1)  # One was lost.
        table.rmdir()
        wait_for(lambda: len(samples(record)) >= 2)


def test_every_gpu_of_the_machine_is_sampled(record: RunRecord, program: Callable[[str, str], None]) -> None:
    """Also one that answers later than the first sample, and values that a GPU does not measure."""
    lost = "Unable to determine the device handle for GPU2: 0000:3B:00.0: Unknown Error"
    lines = ("0, 97, 412.50, 20480", lost, "1, 3, [N/A], 0")
    program("nvidia-smi", "[ -e answers ] || exit 1\n" + "".join(f"echo '{line}'\n" for line in lines))
    with sampling(STATE):
        wait_for(lambda: samples(record))
        Path("answers").touch()
        *_, (_, values) = wait_for(lambda: [sample for sample in samples(record) if "system/gpu_0_power_usage_watts" in sample[1]])
    first = {"0_utilization_percentage": 97, "0_power_usage_watts": 412.5, "0_memory_usage_megabytes": 21474.8}
    of_gpus = {name.removeprefix("system/gpu_"): value for name, value in values.items() if "gpu" in name}
    assert of_gpus == first | {"1_utilization_percentage": 3, "1_memory_usage_megabytes": 0}


def test_the_first_rank_of_every_node_writes_a_table_of_its_node(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with sampling(STATE):
        pass  # At its end it takes a last sample.
    assert samples(record, 1) == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    with sampling(STATE):
        wait_for(lambda: samples(record, 1))
    assert "system/node_1/cpu_utilization_percentage" in samples(record, 1)[0][1]
