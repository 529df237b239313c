"""Where the figures of an evaluation come from: code, data and models, packages, and the training."""

import os
import platform
import subprocess
from importlib.metadata import version

from flows.journal import JOURNALS, read_events
from flows.paths import LOCK
from transformer_core.config import read_yaml
from transformer_core.evaluation.report import Lineage

# What an evaluation is made of, in order.
STAGES = ("download", "clean", "bpe", "binarize", "train", "average", "decode")
# What its numbers can depend on.
PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "sacremoses")


def lineage(fingerprint: str) -> Lineage:
    """All that is known of it here; `fingerprint` names the training."""
    training = [event["values"] for event in read_events(JOURNALS / f"{fingerprint}.jsonl") if event["type"] == "tags"]
    return Lineage(
        commit=git_commit(),
        outputs=locked_outputs(),
        versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        training={name: value for values in training for name, value in values.items()},
    )


def locked_outputs() -> dict[str, str]:
    """What DVC knows the outputs by that this stage was run on; empty where DVC did not run it, for they may be others then."""
    if "DVC_STAGE" not in os.environ or not LOCK.exists():
        return {}
    stages = read_yaml(LOCK)["stages"]
    return {out["path"]: out["md5"] for stage in STAGES for out in stages.get(stage, {}).get("outs", [])}


def git_commit() -> str:
    """The commit of the working tree, ending in "-dirty" where tracked files differ from it; empty where git knows none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
