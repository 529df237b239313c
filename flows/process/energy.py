"""The energy of a stage on this machine, which CodeCarbon meters, or estimates from the load where the CPU has no readable meter.

CodeCarbon is optional: the extra `energy` installs it. It takes about four seconds to start, and opens no connection.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec


@dataclass
class Energy:
    """The energy of a block in kWh, once it has ended; None without CodeCarbon."""

    kwh: float | None = None


@contextmanager
def metered() -> Iterator[Energy]:
    """Meter the CPUs, memory and GPUs of this machine during the block, whatever else runs on it."""
    energy = Energy()
    if find_spec("codecarbon") is None:
        yield energy
        return
    codecarbon = import_module("codecarbon")
    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)  # It sets its own level when it is imported.
    # The country is for CO2, which is not used here; without one it asks a server where this machine is.
    options = {"country_iso_code": "USA", "save_to_file": False, "log_level": "critical", "allow_multiple_runs": True}
    tracker = codecarbon.OfflineEmissionsTracker(**options)
    tracker.start()
    try:
        yield energy
    finally:
        tracker.stop()
        energy.kwh = tracker.final_emissions_data.energy_consumed
