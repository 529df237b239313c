"""The energy of a stage on this machine, which CodeCarbon meters, or estimates from the load where the CPU has no readable meter.

CodeCarbon is optional: the extra `energy` installs it. It takes about four seconds to start, and opens no connection.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec


def metered(work: Callable[[], str]) -> tuple[str, float | None]:
    """Return the result of some work, and the kWh of this machine's CPUs, memory and GPUs meanwhile, whatever else runs on it.

    Without CodeCarbon the kWh are None.
    """
    if find_spec("codecarbon") is None:
        return work(), None
    codecarbon = import_module("codecarbon")
    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)  # It sets its own level when it is imported.
    # The country is for CO2, which is not used here; without one it asks a server where this machine is.
    options = {"country_iso_code": "USA", "save_to_file": False, "log_level": "critical", "allow_multiple_runs": True}
    with codecarbon.OfflineEmissionsTracker(**options) as tracker:
        done = work()
    return done, tracker.final_emissions_data.energy_consumed
