"""The model registry: the choice of the champion among the versions of a model, and the description of a version.

The alias `champion` moves to a new version that is not significantly worse than the best one so far. A version that is significantly worse,
or whose score is 0, gets no alias. If it is comparable with no earlier version, it becomes `challenger`, or `champion` if there is no
champion. Versions are comparable if their tags `references` and `signature` are equal. The score is the main one of the task
(evaluation/scoring.py). The outputs of a model for the test set are stored with it, so that any machine that reaches the registry can
compare.

Each further test set, `test_NAME`, has aliases of its own by the same rule, `champion-NAME` and `challenger-NAME`; the tags of a version
for it end with `.test_NAME`. Test sets of two versions are the same if their references are, whatever they are called.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from flows.process.paths import AVERAGED
from flows.record.server import connect, reaching
from transformer_core.corpus.text import read_lines
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.evaluation.scoring import SIGNIFICANT, Comparison, Scoring, scoring_of
from transformer_core.files import sha256_of
from transformer_core.tasks import TARGETS, direction_of, task_of

CHAMPION, CHALLENGER, NO_ALIAS = "champion", "challenger", "no alias"
MAIN_TEST = "test"
# MLflow's folder for the files of a logged model.
MODEL_ARTIFACTS = "artifacts"
# Folder of a logged model's outputs for the test set. The tag `hypotheses` of a version has their SHA-256.
EVALUATION = "evaluation"
RULE = (
    f"`{CHAMPION}` is the latest version that was not significantly worse than the best earlier version (BLEU, or F1 of a parser, on the "
    f"same test set; p < {SIGNIFICANT} in a two-sided paired test); `{CHALLENGER}` is the latest version that is comparable with no "
    f"earlier one; `{CHAMPION}-NAME` is that of the further test set test_NAME. Each version's tags name its rival and result."
)


class Decision(NamedTuple):
    """The alias of a new version, empty for none, and the reason. `rival` is the version that it was compared with, or empty."""

    alias: str
    reason: str
    rival: str = ""
    comparison: Comparison | None = None

    def tags(self, split: str = MAIN_TEST) -> dict[str, str]:
        """Return the tags of the version that record the decision on a test set."""
        tags = {"decision": self.alias or NO_ALIAS, "decision_reason": self.reason}
        if self.comparison is not None:
            tags |= {
                "rival_version": self.rival,
                f"rival_{self.comparison.score.key}_difference": f"{self.comparison.difference:+.2f}",
                "rival_p_value": f"{self.comparison.p_value:.4f}",
            }
        return {tag_of(key, split): value for key, value in tags.items()}


def tag_of(key: str, split: str) -> str:
    """Return the name of a version's tag for a test set."""
    return key if split == MAIN_TEST else f"{key}.{split}"


def register(client: MlflowClient, name: str, model_uri: str, model_id: str, run_id: str, tags: Mapping[str, str]) -> ModelVersion:
    """Register a logged model as a new version, and return the version."""
    try:
        client.create_registered_model(name, description=RULE)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(name, model_uri, run_id, dict(tags), model_id=model_id)


def registered_before(client: MlflowClient, name: str, run_id: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """Return the version of a run that a publish has registered with these tags, perhaps before it was killed."""
    versions = client.search_model_versions(f"name = '{name}'")
    return next((version for version in versions if version.run_id == run_id and version.tags.items() >= tags.items()), None)


def decision_of(version: ModelVersion) -> Decision | None:
    """Return the decision that a version's tags record, without its comparison; None if it was not made, or not all of it was done."""
    alias = version.tags.get("decision")
    return None if alias is None else Decision("" if alias == NO_ALIAS else alias, version.tags["decision_reason"])


def decide(
    client: MlflowClient, new: ModelVersion, scoring: Scoring, hypotheses: Sequence[str], references: Sequence[str], by: str, split: str
) -> Decision:
    """Decide on the alias of a new version by the score `by` of a test set, a tag beside `references`, `signature` and the main score."""
    task, suffix = scoring.task, split.removeprefix(MAIN_TEST).replace("_", "-", 1)
    champion, challenger = CHAMPION + suffix, CHALLENGER + suffix
    if float(new.tags[tag_of(task.key, split)]) == 0:
        return Decision("", f"its {task.score} is 0.00")
    best = best_ever(client, new, by, split)
    if best is None:
        if str(client.get_registered_model(new.name).aliases.get(champion, new.version)) != str(new.version):
            return Decision(challenger, f"no earlier version was scored on these references in this way and has kept its {scoring.outputs}")
        first = int(new.version) == 1
        return Decision(champion, "the first version" if first else "no earlier version to compare with, and no champion")
    rival, translations = best
    comparison = next(found for found in scoring.comparisons(translations, hypotheses, references) if found.score.key == by)
    worse = comparison.significant and comparison.difference < 0
    result = f"significantly {'worse' if worse else 'better'} than" if comparison.significant else "not significantly different from"
    reason = (
        f"{result} version {rival.version}, the best so far: "
        f"{comparison.difference:+.2f} {comparison.score.name}, two-sided p = {comparison.p_value:.4f} (below {SIGNIFICANT} is significant)"
    )
    return Decision("" if worse else champion, reason, str(rival.version), comparison)


def best_ever(client: MlflowClient, new: ModelVersion, score: str, split: str) -> tuple[ModelVersion, list[str]] | None:
    """Return the comparable version with the highest `score`, a tag, whose outputs are stored (the oldest of several), and its outputs."""
    comparable = []
    wanted = {key: new.tags[key] for key in ("signature", f"{score}_signature") if key in new.tags}.items()
    for version in client.search_model_versions(f"name = '{new.name}'"):
        tagged = (key.split(".", 1) for key, value in version.tags.items() if value == new.tags[tag_of("references", split)])
        same = next((name[0] if name else MAIN_TEST for key, *name in tagged if key == "references"), None)
        if same and version.version != new.version and tag_of(score, same) in version.tags and wanted <= version.tags.items():
            comparable.append((-float(version.tags[tag_of(score, same)]), int(version.version), same, version))
    for _, _, same, version in sorted(comparable, key=lambda found: found[:2]):
        if (translations := stored_hypotheses(client, version, same)) is not None:
            return version, translations
    return None


def stored_hypotheses(client: MlflowClient, version: ModelVersion, split: str) -> list[str] | None:
    """Return a version's outputs for a test set; None if they are not stored, or have changed since it was registered."""
    name = f"{split}.hyp"
    try:
        folder = f"{client.get_model_version_download_uri(version.name, version.version)}/{MODEL_ARTIFACTS}/{EVALUATION}"
        stored = mlflow.artifacts.list_artifacts(folder, tracking_uri=client.tracking_uri)
        if not any(Path(item.path).name == name for item in stored):
            return None
        with TemporaryDirectory() as temporary:
            file = Path(mlflow.artifacts.download_artifacts(f"{folder}/{name}", dst_path=temporary, tracking_uri=client.tracking_uri))
            if sha256_of(file) != version.tags.get(tag_of("hypotheses", split)):
                return None
            return list(read_lines(file))
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # The model behind the version was deleted.
            return None
        raise


def number_of(model: str, uri: str) -> str:
    """Return the number of a version, NAME@ALIAS or NAME/VERSION. Raises `UserError`: as `fetch`."""
    with reaching(uri):
        return str(_version(connect(uri), model, uri).version)


def _version(client: MlflowClient, model: str, uri: str) -> ModelVersion:
    name, at, alias = model.rpartition("@")
    numbered, _, number = model.rpartition("/")
    try:
        return client.get_model_version_by_alias(name, alias) if at else client.get_model_version(numbered, number)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        remedy = "Name one as NAME@champion, NAME@challenger or NAME/VERSION; `mlflow ui` shows them."
        raise configuration_error(f"MLflow at {uri} has no model {model}: {first_line(error)}", remedy) from error


def fetch(model: str, uri: str, folder: Path) -> Path:
    """Copy the model directory of a version, NAME@ALIAS or NAME/VERSION, into `folder`, and return its path.

    Raises `UserError`: 78 if the registry has no such version, 69 if it is unavailable.
    """
    with reaching(uri):
        client = connect(uri)
        version = _version(client, model, uri)
        files = f"{client.get_model_version_download_uri(version.name, version.version)}/{MODEL_ARTIFACTS}/{AVERAGED.name}"
        try:
            return Path(mlflow.artifacts.download_artifacts(files, dst_path=str(folder), tracking_uri=uri))
        except MlflowException as error:
            # MLflow writes the cause last, below lines that say what it was to copy.
            cause = str(error).strip().split("\n")[-1]
            remedy = "Check the server's artifact store, and run again."
            raise UserError(f"MLflow at {uri} cannot provide model {model}: {cause}", remedy, ExitCode.UNAVAILABLE) from error


def card(model: str, decision: Decision, training: str, scores: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """Return the description of the version `model`, NAME/VERSION, in markdown: score, decision, training, licence of the data, use."""
    source, target = manifest["source"], manifest["target"]
    task = task_of(target)
    several, asked = ("", "") if target != TARGETS else (f" Directions: {direction_of(manifest)}.", " --to LANGUAGE")
    return f"""\
{task.headline(scores)} on {scores["lines"]:,} lines of test of {manifest["corpus"]} (`{scores["signature"]}`)

{f"Became `{decision.alias}` when it was published" if decision.alias else "No alias"}: {decision.reason}.

{scoring_of(task).purpose.format(source=source, target=target)}{several} Trained as *{training}*. Licence of the data: \
{manifest["licence"] or "none is stated"}.

```
python -m flows.translate {model}{asked} < in.{source} > out.{target}
```
"""
