"""The JSON files that stages write for other stages: what their readers need is checked before it is used.

A reader gets the document as it is in the file. Keys that no reader needs are not checked.
"""

import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from flows.process import paths
from flows.process.paths import MANIFEST, RAW, SCORES, TRAINING_METRICS
from transformer_core.config import Params
from transformer_core.corpus.cleaning.report import CLEANING_REPORT, CleaningReport
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.errors import configuration_error
from transformer_core.files import read_json
from transformer_core.schema import Name, PositiveInt, Quantity, Section, Total, check_document
from transformer_core.tasks import TRANSLATION, Task, all_tasks

# score_table has 80 columns.
_FIRST, _WIDTH, _INTERVAL = 30, 8, 15
CLEANING, DECODING = paths.CLEAN / CLEANING_REPORT, paths.DECODED / "statistics.json"
MODEL_CONFIG, CHECKPOINT_CONFIG = paths.AVERAGED / "config.json", paths.CHECKPOINTS / "config.json"


def _needs(**keys: Any) -> type[Section]:
    """Return the schema of a document with these keys of these types; the file may have others."""
    return create_model("Document", __base__=Section, __cls_kwargs__={"extra": "ignore"}, **keys)


# The perplexity of a model that has learnt nothing may be infinite.
_PERPLEXITY = Annotated[float, Field(allow_inf_nan=True)]
_TRAINING = _needs(updates=Total, parameters=Total, minutes=Quantity, tokens_per_second=Quantity, valid_perplexity=_PERPLEXITY)
_SPEED = _needs(lines=Total, seconds=Quantity, target_tokens=Total, tokens_per_second=Quantity)
_DECODING = _needs(valid=_SPEED, test=_SPEED, engine=str, beam=PositiveInt, penalty=str, alpha=Quantity, made=str, machine=str)
# The main score of the model that the training started from, and the difference to it.
_GAIN: Any = _needs(before=Quantity, gain=float, low=float, high=float, p_value=Quantity)
_SCHEMAS: Mapping[Path, type[BaseModel]] = {MANIFEST: Manifest, CLEANING: CleaningReport, TRAINING_METRICS: _TRAINING, DECODING: _DECODING}


def read_output(path: Path) -> dict[str, Any]:
    """Return a JSON file of a stage, one of `_SCHEMAS`. Raises `UserError` (65): missing, not JSON, or a needed key is missing or wrong."""
    return _read(path, lambda _: _SCHEMAS[path])


def read_manifest(params: Params) -> dict[str, Any]:
    """Return the manifest of data/raw, empty if there is none: stage train depends on the corpus, and not on its manifest.

    So `dvc repro --single-item --pull train` does not fetch it, and an edit of a licence or of a test set trains no new model.
    Raises `UserError`: as `read_output`; 78, it is of another corpus than section download names.
    """
    if not MANIFEST.exists():
        return {}
    manifest, wanted = read_output(MANIFEST), params.download
    if (manifest["corpus"], manifest["source"], manifest["target"]) != (wanted.corpus, wanted.source, wanted.target):
        found = f"{manifest['corpus']} from {manifest['source']} to {manifest['target']}"
        fault = f"{RAW}: holds {found}, but section download names {wanted.corpus} from {wanted.source} to {wanted.target}"
        raise configuration_error(fault, "Run the stages from download on: dvc repro")
    return manifest


def tags_of_corpus() -> set[str]:
    """Return the tags of data/raw, with which source sentences begin. Raises `UserError` (65), as `read_output`."""
    return {tag for origin in read_output(MANIFEST)["origin"] for tag in origin.get("tag", "").split()}


def _read(path: Path, schema_of: Callable[[Any], type[BaseModel]]) -> dict[str, Any]:
    """Return a JSON file as it is. Raises `UserError` (65): it is missing or not JSON, or a key of its schema is missing or wrong."""
    paths.require(path)
    document = read_json(path, paths.rerun_remedy(path))
    check_document(schema_of(document), document, path, paths.rerun_remedy(path))
    return dict(document)


def task_scored(scores: Mapping[str, Any]) -> Task:
    """Return the task of the content of scores.json."""
    return next((task for task in all_tasks() if task.key in scores), TRANSLATION)


def read_scores(task: Task | None = None) -> dict[str, Any]:
    """Return scores.json, of this task or else of the one whose main score it has. Raises `UserError` (65), as `read_output`."""
    return _read(SCORES, lambda scores: _schema(task or task_scored(scores if isinstance(scores, dict) else {})))


@cache
def _schema(task: Task) -> type[BaseModel]:
    """Return the schema of what readers need of scores.json. It is made once: Python never frees a class that pydantic has made."""
    from transformer_core.evaluation.scoring import scoring_of  # Here: stages that read no scores do not load it.

    scoring = scoring_of(task)
    main, *others = scoring.scores
    numbers: dict[str, Any] = dict.fromkeys(main.keys, Quantity)
    numbers |= {score.key: (Quantity, 0) if score.optional else Quantity for score in others}
    of_test: dict[str, Any] = dict.fromkeys((share.key for share in scoring.shares), Quantity)
    of_test |= {"corpus": Name, "lines": Total, "signature": str, "references_sha256": str}
    for score in scoring.published:
        of_test |= {score.key: (float, 0), f"{score.key}_signature": (str, "")}
    further: Any = _needs(**numbers, lines=Total)
    return _needs(**numbers, **of_test, valid=_needs(**numbers), tests=(dict[str, further], {}), gains=(dict[str, _GAIN], {}))


def score_table(scores: Mapping[str, Any]) -> str:
    """Return the content of scores.json as a table for a terminal of 80 columns."""
    from transformer_core.evaluation.scoring import scoring_of
    from transformer_core.evaluation.variety import in_words

    scoring = scoring_of(task_scored(scores))
    main, *others = scoring.scores
    widths = {score: max(_WIDTH, len(score.name) + 2) for score in others}
    heads = "".join(f"{score.name:>{width}}" for score, width in widths.items())
    rows = [f"{scores['corpus']:<{_FIRST}}{main.name:>{_WIDTH}}{'95% interval':>{_INTERVAL}}{heads}"]
    tests = {"test": scores, **scores.get("tests", {})}
    splits = {"valid": scores["valid"], **tests}
    for split, of_split in splits.items():
        interval = f"{of_split[f'{main.key}_low']:.2f}-{of_split[f'{main.key}_high']:.2f}"
        cells = (f"{f'{of_split[score.key]:.2f}' if score.key in of_split else '-':>{width}}" for score, width in widths.items())
        rows.append(f"{split:<{_FIRST}}{of_split[main.key]:>{_WIDTH}.2f}{interval:>{_INTERVAL}}{''.join(cells)}")
    lines = ", ".join(f"{of_split['lines']:,} line{'s' * (of_split['lines'] != 1)} of {split}" for split, of_split in tests.items())
    rows.append(f"{main.name}: {scores['signature']}, {lines}")
    for score in scoring.published:
        if score.key in scores:
            found = ", ".join(f"{of_split[score.key]:.2f} on {split}" for split, of_split in splits.items() if score.key in of_split)
            rows.append(f"{score.name}: {found}, {scores.get(f'{score.key}_signature', 'of unknown signature')}")
    if gains := scores.get("gains"):
        rows.append(f"{f'{main.name} against the start':<{_FIRST}}{'before':>{_WIDTH}}{'gain':>{_WIDTH}}{'95% interval':>18}{'p':>8}")
    for split, of_split in (gains or {}).items():
        interval = f"{of_split['low']:+.2f} to {of_split['high']:+.2f}"
        values = f"{of_split['before']:>{_WIDTH}.2f}{of_split['gain']:>+{_WIDTH}.2f}{interval:>18}{of_split['p_value']:>8.4f}"
        rows.append(f"{split:<{_FIRST}}{values}")
    shares = ", ".join(f"{scores[share.key]:.1f}% {share.name}" for share in scoring.shares)
    outputs = textwrap.fill(", ".join(filter(None, (f"Outputs for test: {shares}", in_words(scores)))), 80)
    return "\n".join([*rows, outputs, f"Report: {paths.REPORT}"])
