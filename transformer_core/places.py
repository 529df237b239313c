"""Where a stage runs if not on this machine: the values of `machine.places`. flows/places submits the stage there."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from transformer_core.schema import Name, NonNegativeInt, PositiveInt, Section

# A training that gets its notice needs time for updates before it, or a job would be queued again for ever.
LEAST_MINUTES = 10

# The lines for sbatch have no quotes.
_Option = Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
_Word = Annotated[str, Field(pattern=r"^[\w.,:@+/=-]+$", description="a word of letters, digits and _.,:@+/=-")]


def _minutes(text: str) -> float:
    """Return the minutes of a time of Slurm: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS. Raises `ValueError` for other texts."""
    if not re.fullmatch("([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        raise ValueError
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash or len(parts) == 3:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def _long_enough(text: str) -> str:
    if _minutes(text) < LEAST_MINUTES:
        raise ValueError
    return text


SlurmTime = Annotated[
    str, AfterValidator(_long_enough), Field(description=f"a time of Slurm of at least {LEAST_MINUTES} minutes, such as 24:00:00 or 2-12")
]


class Slurm(Section):
    """Jobs of Slurm.

    Attributes:
        time: time limit of a job, which is queued again at its end.
        nodes: nodes that train together.
        gpus: GPUs of each node; 0 trains on CPUs.
        options: further options of sbatch, as {"partition": "gpu", "mem": "200G"}.
        prelude: file with shell commands that each node runs first.
    """

    on: Literal["slurm"]
    time: SlurmTime
    nodes: PositiveInt = 1
    gpus: NonNegativeInt = 0
    options: dict[_Option, _Word] = Field(default={})
    prelude: Name | None = None


class Kubernetes(Section):
    """Indexed Jobs of Kubernetes, submitted by kubectl.

    Attributes:
        image: image built from the Dockerfile.
        claim: persistent volume claim with this repository.
        mount: folder at which the claim is mounted, here and in the pods.
        nodes, gpus: as of `Slurm`.
        patch: file with fields to merge into the job, as by `kubectl patch`.
    """

    on: Literal["kubernetes"]
    image: Name
    claim: Name
    mount: Name
    nodes: PositiveInt = 1
    gpus: NonNegativeInt = 0
    patch: Name | None = None


class WorkPool(Section):
    """A work pool of Prefect, whose workers see this folder.

    Attributes:
        pool: name of the pool.
        nodes: one; several nodes are for Slurm and Kubernetes.
    """

    on: Literal["prefect"]
    pool: Name
    nodes: Literal[1] = 1


Place = Annotated[Slurm | Kubernetes | WorkPool, Field(discriminator="on")]
