"""Samples of the use of machines: CPUs, memory and GPUs of every node of a training."""

import os
import threading
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from flows.record import usage
from flows.record.journal import Journal, read_events
from flows.record.usage import reporting, sampling
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "SECONDS_BETWEEN_SAMPLES", 0.01)


def samples(journal: Journal) -> list[tuple[int, dict[str, float]]]:
    """Step and values of each sample."""
    return [(event["step"], event["values"]) for event in read_events(journal.path) if event["type"] == "metrics"]


def test_the_use_of_the_machine_is_sampled_until_the_block_ends() -> None:
    for begun in (0, 2):  # The second time as a resumed training.
        journal = Journal("f00d", resumed=bool(begun))
        with sampling(journal):
            wait_for(lambda: len(samples(journal)) >= begun + 2)  # noqa: B023
        journal.end("KILLED")
        assert "usage" not in [thread.name for thread in threading.enumerate()]
        assert [step for step, _ in samples(journal)] == list(range(len(samples(journal))))
        journal.path.write_text("".join(journal.path.read_text().splitlines(keepends=True)[:4]))  # Two samples, the last ones torn off.
    _, values = samples(journal)[0]
    assert values["system/system_memory_usage_megabytes"] > 0
    assert all(0 <= values[f"system/{name}_percentage"] <= 100 for name in ("cpu_utilization", "system_memory_usage"))


def test_sampling_goes_on_after_a_moment_in_which_the_journal_could_not_be_written() -> None:
    journal = Journal("f00d")
    kept = journal.path
    with sampling(journal):
        journal.path = Path()  # A folder, in which no line can be written.
        wait_for(lambda: journal.next_step("system/cpu_utilization_percentage") >= 3)
        journal.path = kept
        assert wait_for(lambda: samples(journal))[0][0] >= 3


def test_every_gpu_of_the_machine_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "Unable to determine the device handle for GPU2: 0000:3B:00.0: Unknown Error"
    lines = ("0, 97, 412.50, 20480, 81920", lost, "1, 3, [N/A], 0, 81920")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    journal = Journal("f00d")
    with sampling(journal):
        _, values = wait_for(lambda: samples(journal))[0]
    assert {name: value for name, value in values.items() if "gpu" in name} == {
        "system/gpu_0_utilization_percentage": 97,
        "system/gpu_0_power_usage_watts": 412.5,
        "system/gpu_0_memory_usage_megabytes": 21474.8,
        "system/gpu_0_memory_usage_percentage": 25,
        "system/gpu_1_utilization_percentage": 3,
        "system/gpu_1_memory_usage_megabytes": 0,
        "system/gpu_1_memory_usage_percentage": 0,
    }


def test_node_0_records_the_samples_of_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_torchrun = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**of_torchrun, "MASTER_PORT": str(store.port)}.items():
        monkeypatch.setenv(name, value)
    journal = Journal("f00d")
    with sampling(journal), reporting():
        wait_for(lambda: sum("system/node_1/cpu_utilization_percentage" in values for _, values in samples(journal)) >= 2)
    assert all("system/cpu_utilization_percentage" in values for _, values in samples(journal))
