"""Where a stage runs if not on this machine: the values of `machine.places`. flows/places submits the stage there."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt

from transformer_core.schema import Name, PositiveInt, Section

# A training that gets its notice needs time for updates before it, or a job would be queued again for ever.
LEAST_MINUTES = 10

# The lines for sbatch have no quotes.
_Option = Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
_Word = Annotated[str, Field(pattern=r"^[\w.,:@+/=-]+$", description="a word of letters, digits and _.,:@+/=-")]


def _long_enough(text: str) -> str:
    """Refuse what is no time of Slurm (MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS), or a short one."""
    if not re.fullmatch("([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        raise ValueError
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = (*parts, 0, 0)[:3] if dash or len(parts) == 3 else (0, *parts, 0)[:3]
    if (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60 < LEAST_MINUTES:
        raise ValueError
    return text


SlurmTime = Annotated[
    str, AfterValidator(_long_enough), Field(description=f"a time of Slurm of at least {LEAST_MINUTES} minutes, such as 24:00:00 or 2-12")
]


class Slurm(Section):
    """Jobs of Slurm."""

    on: Literal["slurm"]
    time: SlurmTime  # Time limit of a job, which is queued again at its end.
    nodes: PositiveInt = 1  # That train together.
    gpus: NonNegativeInt = 0  # Of each node; 0 trains on CPUs.
    options: dict[_Option, _Word] = Field(default={})  # Further options of sbatch, as {"partition": "gpu", "mem": "200G"}.
    prelude: Name | None = None  # File with shell commands that each node runs first.

    @property
    def sbatch_options(self) -> dict[str, object]:
        """The options of sbatch for its jobs."""
        return {"nodes": self.nodes, **({"gpus-per-node": self.gpus} if self.gpus else {}), "time": self.time, **self.options}


class Kubernetes(Section):
    """Indexed Jobs of Kubernetes, submitted by kubectl."""

    on: Literal["kubernetes"]
    image: Name  # Built from the Dockerfile.
    claim: Name  # Persistent volume claim with this repository.
    mount: Name  # Folder at which the claim is mounted, here and in the pods.
    nodes: PositiveInt = 1
    gpus: NonNegativeInt = 0
    patch: Name | None = None  # File with fields to merge into the job, as by `kubectl patch`.


class WorkPool(Section):
    """A work pool of Prefect, whose workers see this folder."""

    on: Literal["prefect"]
    pool: Name
    nodes: Literal[1] = 1  # Several nodes are for Slurm and Kubernetes.


Place = Annotated[Slurm | Kubernetes | WorkPool, Field(discriminator="on")]
