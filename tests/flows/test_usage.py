"""The sampler beside a training: what it writes, that it ends with its block, and that a resumed training goes on counting."""

import threading
import time
from pathlib import Path

import pytest
import torch
from flows.record.usage import Usage

from flows.record import usage
from flows.record.journal import Journal, read_events


def sampled(journal: Journal, wanted: int) -> list[int]:
    """Steps in the journal, once there are so many."""
    deadline = time.monotonic() + 120
    while True:
        steps = [event["step"] for event in read_events(journal.path) if event["type"] == "metrics"]
        if len(steps) >= wanted:
            return steps
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_machine_does_is_sampled_until_the_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "INTERVAL_SECONDS", 0.01)
    for begun in (0, 2):  # The second time as a training that goes on.
        journal = Journal("f00d", directory=tmp_path)
        with Usage(journal, torch.device("cpu")):
            sampled(journal, begun + 2)
        journal.end("KILLED")
        assert "usage" not in [thread.name for thread in threading.enumerate()]
        steps = sampled(journal, 0)
        assert steps == list(range(len(steps)))
        journal.path.write_text("".join(journal.path.read_text().splitlines(keepends=True)[:4]))  # Two samples, the last ones torn off.
    (values, *_) = [event["values"] for event in read_events(journal.path) if event["type"] == "metrics"]
    assert values["system/system_memory_usage_megabytes"] > 0
    assert all(0 <= values[f"system/{name}_percentage"] <= 100 for name in ("cpu_utilization", "system_memory_usage"))
