"""Stage evaluate: scores of valid and of the test sets, in total and by group of sentences, and the report."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flows.process import paths
from flows.process.runner import echo
from flows.record.costs import costs, seconds_of
from flows.record.documents import CLEANING, DECODING, MODEL_CONFIG, read_manifest, read_output, score_table
from flows.record.lineage import lineage
from flows.record.run import NAME, REFERENCES, SCORES_STEP, SOURCES, RunRecord, flatten, identity_of, read_record
from transformer_core.config import COMET, Params
from transformer_core.corpus.text import Pair, read_lines
from transformer_core.corpus.tokens.encoding import encoded
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.evaluation.attention import attention_maps, choose_sentence, keeps_weights
from transformer_core.evaluation.bleu import tokenizer_for, tokenizer_of
from transformer_core.evaluation.examples import choose_examples, scores_by_length
from transformer_core.evaluation.neural import with_comet
from transformer_core.evaluation.report import Attended, Lineage, Report, render, render_sentences
from transformer_core.evaluation.scoring import Scoring, read_aligned, scoring_of
from transformer_core.evaluation.variety import collapse
from transformer_core.files import read_numbers, sha256_of, write_json, write_text
from transformer_core.models.directory import SUBWORD, load_model, read_config

STAGES_BEFORE = ("download", "clean", "bpe", "binarize", "train", "average", "decode")
# Keys of statistics.json for the day and the machine of decoding, and of the text, which are not settings.
PROVENANCE = ("made", "machine", "unknown")


def run(params: Params) -> str:
    """Score the outputs, write score files, report and record, and print the table."""
    scoring = scoring_of(params.download.task, tokenizer_of(params.download.target, params.evaluate.tokenize))
    began = time.monotonic()
    command, source = params.evaluate.comet, params.download.source
    with with_comet(scoring, command, "evaluate.comet", lambda split: list(read_lines(paths.RAW / f"{split}.{source}"))) as with_all:
        report = gather(params, with_all)
    seconds = {**report.seconds, "evaluate": time.monotonic() - began}
    report = replace(report, seconds=seconds, costs=costs({name: took for name, took in seconds.items() if took is not None}, params))
    page, scores = render(report, scoring), scores_document(report, scoring)
    write_json(paths.SCORES, scores)
    write_json(paths.METRICS, for_dvc(scores, report, scoring))
    rows = [f"{group.label},{group.size},{group.score:.2f}\n" for group in report.by_length]
    write_text(paths.BY_LENGTH, "".join(["source_words,sentences,score\n", *rows]))
    write_text(paths.REPORT, page)
    write_text(paths.SENTENCES, render_sentences(report, scoring))
    record(scores, report, scoring)
    print(score_table(scores))
    if warning := collapse(scores):
        echo(warning, sys.stderr)
    return f"{scoring.task.headline(scores)} on the test set of {scores['corpus']}: {paths.REPORT}"


def gather(params: Params, scoring: Scoring) -> Report:
    """Read the outputs of the earlier stages and score them; `run` adds this stage's own time.

    Raises `UserError` (65): a file is missing, wrong, not UTF-8, or has another number of lines than the files beside it; or references
    cannot be scored, or look tokenised while evaluate.allow_tokenised is off. See also `read_manifest`.
    """
    made = (paths.MANIFEST, CLEANING, paths.TRAINING_METRICS, paths.UPDATES, paths.VALIDATION, MODEL_CONFIG, DECODING)
    paths.require(*made, paths.AVERAGED / SUBWORD)
    manifest, model = read_manifest(params), read_config(MODEL_CONFIG, paths.rerun_remedy(MODEL_CONFIG)).model_dump(mode="json")
    source, target = manifest["source"], manifest["target"]
    raw = (paths.RAW / f"test.{language}" for language in (target, source))
    hypotheses, references, sources = read_aligned(paths.DECODED / paths.HYPOTHESES, *raw)
    sets = {"test": (hypotheses, references)}
    for split in (split for split in manifest["splits"] if split not in ("train", "test")):
        outputs, expected = read_aligned(paths.DECODED / f"{split}.hyp", paths.RAW / f"{split}.{target}")
        sets[split] = outputs, expected
    attention = attention_of(sources, hypotheses)
    for split, (_, expected) in sets.items():
        for warning in scoring.check_references(paths.RAW / f"{split}.{target}", expected, params.evaluate.allow_tokenised):
            echo(warning, sys.stderr)
    gains = {}
    for split, (outputs, expected) in sets.items() if params.parent else ():
        if split != "valid":  # Over the model that the training started from.
            before, _ = read_aligned(paths.DECODED / paths.START / f"{split}.hyp", paths.DECODED / f"{split}.hyp")
            wanted = params.evaluate.tokenize or tokenizer_for(paths.RAW / f"{split}.{target}", "") or tokenizer_of(target)
            gains[split] = next(scoring_of(scoring.task, wanted).comparisons(before, outputs, expected))
    training = read_record(identity_of(model["training"]))  # None for a training that came from a cache.
    # DVC's hashes of the earlier stages' outputs, if it runs this stage: otherwise they may be others.
    locked = paths.locked_stages() if "DVC_STAGE" in os.environ else {}
    hashes = {out["path"]: out["md5"] for stage in STAGES_BEFORE for out in locked.get(stage, {}).get("outs", [])}
    sentence_scores = scoring.sentence_scores(hypotheses, references)
    right = list(map(scoring.is_right, hypotheses, references, sentence_scores))
    return Report(
        manifest=manifest,
        cleaning=read_output(CLEANING),
        model=model,
        parameters=read_output(paths.TRAINING_METRICS)["parameters"],
        settings=params.model_dump(exclude={"machine"}),
        seconds={**dict.fromkeys(STAGES_BEFORE), **seconds_of(STAGES_BEFORE, params, model["training"]["seconds"])},
        decoding=read_output(DECODING),
        updates=read_numbers(paths.UPDATES),
        validation=read_numbers(paths.VALIDATION),
        scores=scoring.score_sets(sets, sources, manifest),
        by_length=scores_by_length(scoring, sources, hypotheses, references),
        examples=choose_examples(sentence_scores, right, params.evaluate.examples),
        sentence_scores=sentence_scores,
        right=right,
        sources=sources,
        references=references,
        hypotheses=hypotheses,
        attention=attention,
        lineage=Lineage(without_mlflow_tags(lineage()), without_mlflow_tags(training.tags if training else {}), hashes),
        gains=gains,
    )


def attention_of(sources: Sequence[str], hypotheses: Sequence[str]) -> Attended | str:
    """Return the attention of the model in one sentence of the test set, or the reason for having no figure.

    The translation is tokenised again from its text; occasionally its tokens differ from those of the search. Raises `UserError` (65): the
    model directory is damaged.
    """
    model, _ = load_model(paths.AVERAGED)
    if not keeps_weights(model):
        return "This model keeps no attention weights: a Transformer does, and a recurrent one with attention."
    subword = Subword.load(paths.AVERAGED / SUBWORD)
    pairs = [encoded(Pair(source, hypothesis), subword) for source, hypothesis in zip(sources, hypotheses, strict=True)]
    index = choose_sentence([(len(source), len(target)) for source, target in pairs])
    if index is None:
        return "No sentence of the test set is short enough for a figure, with a translation that is."
    return Attended(index, attention_maps(model, subword, *pairs[index]))


def without_mlflow_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags without those for MLflow's pages."""
    return {name: value for name, value in tags.items() if not name.startswith("mlflow.")}


def scores_document(report: Report, scoring: Scoring) -> dict[str, Any]:
    """Return the content of scores.json, in percent: scores of test at the top level, of valid and further test sets under their names."""
    test = report.scores["test"]
    values = {split: _rounded(scores.values) for split, scores in report.scores.items()}
    further = {name: {**found, "lines": report.scores[name].lines} for name, found in values.items() if name not in ("test", "valid")}
    published = [score.key for score in scoring.published if score.key in test.values]
    gains = {
        split: _rounded({"before": one.baseline, "gain": one.difference, "low": one.low, "high": one.high})
        | {"p_value": round(one.p_value, 4)}
        for split, one in report.gains.items()
    }
    return {
        **{key: score for key, score in values["test"].items() if key not in published},
        "corpus": report.manifest["corpus"],
        "lines": test.lines,
        "references_sha256": sha256_of(paths.RAW / f"test.{report.manifest['target']}"),
        "signature": test.signatures[scoring.task.key],
        **{key: values["test"][key] for key in published},
        **{f"{key}_signature": test.signatures[key] for key in published},
        **{name: [round(share, 2) for share in part] if isinstance(part, list) else round(part, 3) for name, part in test.parts.items()},
        **_rounded(test.shares),
        "valid": values["valid"],
        **({"tests": further} if further else {}),
        **({"gains": gains} if gains else {}),
    }


def for_dvc(scores: Mapping[str, Any], report: Report, scoring: Scoring) -> dict[str, Any]:
    """Return the content of metrics.json: scores of test, also those that the corpus asks for, the main ones of other splits, minutes.

    The perplexity of valid is that of the last checkpoint alone, while the scores are those of the averaged model.
    """
    training, main = read_output(paths.TRAINING_METRICS), scoring.task.key
    named = [name.replace("-", "_") for name in report.manifest.get("metrics", [])]
    test = {name: scores[name] for name in (*(score.key for score in scoring.scores), *named, COMET) if name in scores}
    valid, last = {main: scores["valid"][main]}, {"perplexity": round(training["valid_perplexity"], 2)}
    further = {
        name: {key: of_split[key] for key in (main, *named, COMET) if key in of_split} for name, of_split in scores.get("tests", {}).items()
    }
    return {**test, "valid": valid, "last_checkpoint": last, **further, "minutes": training["minutes"]}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def record(scores: Mapping[str, Any], report: Report, scoring: Scoring) -> None:
    """Write the record of this evaluation, a child of the training's run; its id is a hash of that run, outputs, settings and scores."""
    hypotheses = [paths.DECODED / f"{split}.hyp" for split in report.scores]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in hypotheses))
    training, decoding = report.model["training"], report.decoding
    search = {name: value for name, value in decoding.items() if name not in (*report.scores, *PROVENANCE)}
    tokenize = report.settings["evaluate"]["tokenize"]
    settings = {"average": report.settings["average"], "decode": search, **({"evaluate": {"tokenize": tokenize}} if tokenize else {})}
    # With the training and its run, because two trainings, or two runs of one, whose outputs are all empty have the same hypotheses.
    digest.update(json.dumps([scores, settings, training["fingerprint"], training["run"]], sort_keys=True).encode())

    models = decoding.get("models", 1)
    searched = f"beam {decoding['beam']}, alpha {decoding['alpha']}{f', {models} models' if models > 1 else ''}"
    run = RunRecord(id=f"evaluation-{digest.hexdigest()[:16]}", parent=identity_of(training))
    described = {name: scores[name] for name in scores if name.endswith("signature") or name in ("lines", "references_sha256")}
    run.parameters = flatten({**settings, **described})
    run.tags = lineage() | {"kind": "evaluation", "corpus": scores["corpus"], NAME: f"{scoring.task.run_name(scores)}, {searched}"}
    test = report.scores["test"]
    run.measure(SCORES_STEP, {name: scores[name] for name in (*test.values, *test.shares)})
    run.measure(training["updates"], scores["valid"], context="valid")
    for name, of_split in scores.get("tests", {}).items():
        run.measure(SCORES_STEP, {key: of_split[key] for key in of_split if key != "lines"}, context=name)
    run.attach_files([paths.REPORT, paths.SENTENCES, *hypotheses, paths.BY_LENGTH, paths.MANIFEST])
    tests = [split for split in report.scores if split != "valid"]
    for side, folder in (("source", SOURCES), ("target", REFERENCES)):
        run.attach_files([paths.RAW / f"{split}.{report.manifest[side]}" for split in tests], folder)
    run.end()
