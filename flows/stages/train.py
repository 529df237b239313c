"""Stage train: binarized pairs to the last checkpoints and the curves of the training.

One device trains in this process; several are the ranks of a torchrun, its child process, which runs this module again.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from hashlib import md5
from math import inf
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

from flows.cluster.group import NodeGroup
from flows.cluster.ranks import launch
from flows.process import paths
from flows.process.repro import locked_stages
from flows.process.runner import echo
from flows.process.signals import handle_stop_signals, ignore_stop_signals
from flows.record.documents import read_manifest
from flows.record.recorder import JOURNAL_ID, TABLES, fingerprint_of, recording
from flows.record.usage import reporting
from transformer_core.config import MOST_INPUT, PARAMS_FILE, PRETRAINED, Params, refuse_nested, resolve
from transformer_core.corpus.text import read_lines, splits_of
from transformer_core.corpus.tokens.binary import check_split, open_split, read_meta
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.shortlist import check_aligner
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import BATCH_TOKENS, Translator, batches_of, shortened
from transformer_core.errors import Interrupted, UserError, configuration_error
from transformer_core.evaluation.bleu import corpus_bleu
from transformer_core.evaluation.brackets import corpus_f1
from transformer_core.files import is_locked, locked, new_directory, read_json, read_numbers, write_json
from transformer_core.models.architectures import build
from transformer_core.models.directory import CONFIG, WEIGHTS, ModelConfig, Training, Vocabulary, load_model
from transformer_core.models.precision import weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.training.checkpoint import FINISHED, STORED, TRAINING_LOCK, StateDirectory, state_of, state_root, stopped_trainings
from transformer_core.training.devices import Rank, autocast, default_devices, matrix_rate, process_group
from transformer_core.training.records import Observer, Progress
from transformer_core.training.trainer import Trainer
from transformer_core.training.update import seed_everything
from transformer_core.training.validation import score_split, try_largest


class _OutputScore(NamedTuple):
    """The score of greedy outputs in a validation: its name, its function, and the number of tokens an output may exceed its source by."""

    name: str
    score: Callable[[Sequence[str], Sequence[str]], float]
    max_extra: int


# By task. The lengths are the paper's (6.1, 6.3).
_OUTPUT_SCORES = {"translation": _OutputScore("bleu", corpus_bleu, 50), "parsing": _OutputScore("f1", corpus_f1, 300)}


def run(params: Params) -> str:
    """Train here, or through torchrun if several devices, of this machine or of several, train together."""
    _check_data(params)
    if params.train.warning:
        echo(params.train.warning, sys.stderr)
    group, state = NodeGroup.from_environment(), state_of(fingerprint_of(params))
    if group is None and (params.machine.nodes or 1) > 1:
        alone = "is for python -m flows.pipeline; this training runs on this machine alone"
        echo(f"machine.nodes: {params.machine.nodes} {alone}", sys.stderr)
    first = group is None or group.rank == 0
    if _only_outputs_are_missing(params, state, first):
        if first:
            train(params)
    else:
        devices = params.machine.devices or default_devices(-(-params.train.microbatches // (group.nodes if group else 1)))
        if devices == 1 and group is None:
            train(params)
        else:
            launch(devices, group)
    if group is not None and not first:
        return f"node {group.rank} of {group.nodes}: done; the outputs are on node 0"
    ignore_stop_signals()  # All outputs are written and the rest is quick, but DVC saves no outputs of a stopped stage.
    (state / FINISHED).write_text(
        f"{md5(paths.TRAINING_METRICS.read_bytes(), usedforsecurity=False).hexdigest()} {_end(params)}", encoding="utf-8"
    )
    metrics = read_json(paths.TRAINING_METRICS)
    return (
        f"{paths.CHECKPOINTS}: {metrics['updates']:,} updates in {metrics['minutes']:.1f} minutes, "
        f"{metrics['tokens_per_second']:,} target tok/s, valid PPL {metrics['valid_perplexity']:.2f}"
    )


def _end(params: Params) -> str:
    """Return the settings that end a training."""
    return f"{params.train.updates} {params.train.patience}"


def _only_outputs_are_missing(params: Params, state: Path, first: bool) -> bool:
    """Return whether the training has finished and its outputs were lost: the first node writes them again, and needs no other node.

    DVC has failed to store them, for example on a full disk, and removes them before it runs the stage again. If it has stored them, the
    training is forced to run again, or is to end earlier, and the first node removes the state. To a later end the training goes on.
    """
    finished, stored = state / FINISHED, (state / STORED).exists()
    if not finished.exists():
        return False
    metrics, _, end = finished.read_text(encoding="utf-8").partition(" ")
    same = end == _end(params)
    recorded = {output["path"]: output.get("md5") for output in locked_stages().get("train", {}).get("outs", [])}
    if same and not stored and recorded.get(paths.TRAINING_METRICS.as_posix()) != metrics:
        return True
    if first and (same or (stored and not _is_later(params, end))):
        shutil.rmtree(state)
    return False


def _is_later(params: Params, end: str) -> bool:
    """Return whether the settings end a training no earlier than those of `_end`."""
    updates, patience = map(int, end.split())
    return params.train.updates >= updates and (params.train.patience or inf) >= (patience or inf)


def _check_data(params: Params) -> None:
    """Check that data, vocabulary and settings belong together.

    Raises `UserError`: 65 if a file of the data is damaged or the data has another vocabulary; 78 if the data is of another corpus, for
    BPE-dropout with a vocabulary that is not BPE, if there is no model in `train.init_from`, or are two, and if the shortlist's aligner is
    missing.
    """
    pools = params.machine.pools
    if params.average.shortlist and pools.get("train") == pools.get("average"):  # Stage average needs it here, after the training.
        check_aligner()
    read_manifest(params)
    for split in ("train", "valid"):
        check_split(paths.BINARIZED / split)
    binarized, subword = read_meta(paths.BINARIZED / "train").vocabulary_hash, Subword.load(paths.SUBWORD_MODEL)
    if binarized != subword.hash:
        raise UserError(
            f"{paths.BINARIZED}: vocabulary {binarized[:12]}, but {paths.SUBWORD_MODEL} is {subword.hash[:12]}",
            "Run the whole pipeline: dvc repro",
        )
    if params.train.bpe_dropout and not subword.is_bpe:
        raise configuration_error(
            f"{PARAMS_FILE}: train.bpe_dropout: must be 0 where {paths.SUBWORD_MODEL} is no BPE model, got {params.train.bpe_dropout}",
            "Only BPE has merges to leave out.",
        )
    parent = params.train.init_from
    if parent is not None and not (PRETRAINED / parent / WEIGHTS).exists():
        fault = f"{PARAMS_FILE}: train.init_from: {PRETRAINED / parent} holds no {WEIGHTS}"
        raise configuration_error(fault, f"See {PRETRAINED}/README.md.")
    if parent is not None:
        refuse_nested(PRETRAINED / parent, f"{PARAMS_FILE}: train.init_from")


def train(params: Params) -> None:
    """Train in this process, alone or as one of torchrun's ranks; rank 0 writes the stage's outputs, and the state is kept.

    Raises:
        Interrupted: stopped, state saved.
        UserError: exit code 69; another process trains the same, perhaps from another clone or machine with the same $TRANSFORMER_STATE.
    """
    stop_asked = _stop_flag()
    fingerprint = fingerprint_of(params)
    with process_group(params.machine.threads) as rank:
        if rank.index > 0:
            _train(params, fingerprint, rank, stop_asked)
            return
        with locked(state_of(fingerprint) / TRAINING_LOCK, "this training"):
            _train(params, fingerprint, rank, stop_asked)
            if stop_asked():  # DVC may have been ended by the same signal.
                raise Interrupted("training stopped after its last update, state saved")


def _train(params: Params, fingerprint: str, rank: Rank, stop_asked: Callable[[], bool]) -> None:
    state, precision, score = state_of(fingerprint), params.train.precision, _OUTPUT_SCORES[params.download.task]
    with ExitStack() as stack:
        model = _new_model(params).to(rank.device, weights_dtype(precision))
        _check_positions(model)
        parameters, recorder = sum(parameter.numel() for parameter in model.parameters()), None
        if rank.index == 0:
            recorder = stack.enter_context(recording(params, fingerprint, state, rank, parameters, score.name))
        else:
            stack.enter_context(reporting())
        split, subword = open_split(paths.BINARIZED / "train"), Subword.load(paths.SUBWORD_MODEL)
        validate, try_validation = _validation(params, model, subword, rank, score, stop_asked)
        trainer = Trainer(
            model,
            split,
            params.train,
            rank,
            StateDirectory(state, params.train.keep),
            recorder or Observer(),
            validate,
            stop_asked,
            matrix_rate(rank, precision),
            BpeDropout(subword, split, params.train) if params.train.bpe_dropout else None,
        )
        resumed = trainer.resume()
        if rank.index == 0:  # A finished training may go on to a later end. If it has reached its end, `run` writes the file again.
            for file in (STORED, FINISHED):
                (state / file).unlink(missing_ok=True)
        if recorder is not None and resumed:
            echo(f"going on after update {trainer.progress.update:,}", sys.stderr)
        elif recorder is not None:
            recorder.begin()
            _name_others(state)
        trainer.check_memory(try_validation)
        progress = trainer.run()
        if rank.index == 0:
            _write_outputs(params, fingerprint, state, progress, parameters)


def _name_others(state: Path) -> None:
    """Print that trainings with other settings or data were stopped: perhaps the user meant to continue one."""
    others = [found for found in stopped_trainings(state_root()) if found.name != state.name]
    others = [found for found in others if not is_locked(found / TRAINING_LOCK) and not (found / FINISHED).exists()]
    if others:
        message = f"starting from update 0; stopped trainings with other settings or data: {len(others)}, the latest is {others[0].name}"
        echo(f"{message} (transformer-core states)", sys.stderr)


def _new_model(params: Params) -> TranslationModel:
    """The model before its first update: random weights, or those of `train.init_from`.

    Raises `UserError` (78): that directory holds another vocabulary or a model of other sizes.
    """
    size, meta = resolve(params.model), read_meta(paths.BINARIZED / "train")
    if params.train.init_from is None:
        seed_everything(params.train.seed, 0, 0)
        return build(size, meta.vocab_size)
    directory = PRETRAINED / params.train.init_from
    model, config = load_model(directory)
    if config.vocabulary.hash != meta.vocabulary_hash:
        fault = f"{directory} has vocabulary {config.vocabulary.hash[:12]}, the data {meta.vocabulary_hash[:12]}"
        raise configuration_error(f"{PARAMS_FILE}: train.init_from: {fault}", "Name the same model in bpe.init_from.")
    found, wanted = (asdict(sizes.effective()) for sizes in (config.model, size))
    if found != wanted:
        different = ", ".join(f"{key} {found[key]} instead of {value}" for key, value in wanted.items() if found.get(key, value) != value)
        fault = f"{PARAMS_FILE}: train.init_from: {directory} has other sizes than section model"
        raise configuration_error(fault, f"It has {different}.")
    tuned = build(size, meta.vocab_size)
    tuned.load_state_dict(model.state_dict())
    return tuned


def _validation(
    params: Params, model: TranslationModel, subword: Subword, rank: Rank, score: _OutputScore, stop_asked: Callable[[], bool]
) -> tuple[Callable[[], dict[str, float] | None], Callable[[], None]]:
    """Return a function of the validation's scores, None after a request to stop, and one that uses as much memory as a validation.

    The scores are teacher-forced ones of valid, and BLEU or F1 of greedy outputs for `train.bleu_sentences` of it.
    Logits that are not finite do not end the training: the trainer skips updates and can restore the weights.
    """
    valid, translator = open_split(paths.BINARIZED / "valid"), Translator(model, subword, strict=False)
    longer = int((np.maximum(valid.source.lengths, valid.target.lengths) > MOST_INPUT + 1).sum())
    if longer == len(valid):
        raise UserError(f"{paths.BINARIZED / 'valid'}: each pair has more than {MOST_INPUT:,} tokens", "Split them into sentences.")
    if longer and rank.index == 0:
        echo(f"valid: {longer:,} pairs of more than {MOST_INPUT:,} tokens: not in the perplexity, sources cut", sys.stderr)
    chosen = np.linspace(0, len(valid) - 1, min(params.train.bleu_sentences, len(valid)), dtype=np.int64).tolist()
    lines = list(read_lines(paths.RAW / f"valid.{params.download.target}"))
    # A model of lowercase text outputs lowercase text.
    references = [lines[number].lower() if params.bpe.lowercase else lines[number] for number in chosen]
    precision, ranks = params.train.precision, rank.world_size
    mine = [shortened(valid.source[number], MOST_INPUT) for number in chosen[rank.index :: ranks]]
    search = Search(beam=1, max_extra=score.max_extra)

    def validate() -> dict[str, float] | None:
        scores = score_split(model, valid, rank, precision, stop_asked)
        if scores is None or any(rank.gathered(stop_asked())):
            return None
        with autocast(rank.device, precision):
            lists = translator.translate_tokens(mine, search)
        by_rank = rank.gathered([hypotheses[0].text for hypotheses in lists])
        texts = [by_rank[place % ranks][place // ranks] for place in range(len(chosen))]
        return {**scores, score.name: score.score(texts, references)}

    def try_largest_batches() -> None:
        try_largest(model, valid, rank.device, precision)
        lengths = [len(source) for source in mine]
        batches = [[mine[number] for number in numbers] for numbers in batches_of(lengths, BATCH_TOKENS)]
        largest = max(batches, key=lambda sources: len(sources) * (max(map(len, sources)) + score.max_extra), default=[])
        with autocast(rank.device, precision):
            translator.translate_tokens(largest, search)

    return validate, try_largest_batches


def _check_positions(model: TranslationModel) -> None:
    """Raise a `UserError` (exit code 78) if a sentence has more tokens than the model has learned positions."""
    if model.most_positions is None:
        return
    for name in splits_of(paths.BINARIZED):
        if not (paths.BINARIZED / name).exists():  # `dvc repro --single-item --pull train` fetches no test set.
            continue
        longest = open_split(paths.BINARIZED / name).longest
        if longest > model.most_positions:
            message = f"{PARAMS_FILE}: model.most_positions: {model.most_positions}, but a sentence of {name} has {longest} tokens"
            raise configuration_error(message, f"Raise it{', or lower binarize.max_tokens' if name == 'train' else ''}.")


def _write_outputs(params: Params, fingerprint: str, state: Path, progress: Progress, parameters: int) -> None:
    """Fill DVC's outputs from the state, which is kept until DVC has stored them."""
    meta, seconds = read_meta(paths.BINARIZED / "train"), round(progress.seconds, 1)
    config = ModelConfig(
        model=resolve(params.model),
        vocabulary=Vocabulary(size=meta.vocab_size, hash=meta.vocabulary_hash),
        source=meta.source,
        target=meta.target,
        training=Training(
            fingerprint=fingerprint,
            run=(state / JOURNAL_ID).read_text(encoding="utf-8"),
            updates=progress.update,
            target_tokens=progress.target_tokens,
            seconds=seconds,
        ),
    )
    with new_directory(paths.CHECKPOINTS) as checkpoints:
        shutil.copytree(state / "checkpoints", checkpoints, dirs_exist_ok=True)
        write_json(checkpoints / CONFIG, config.model_dump(mode="json"))
        write_json(checkpoints / paths.CHECKPOINT_SCORES.name, {"best_by": params.train.best_by, "scores": progress.scores})
    paths.TRAINING.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        shutil.copyfile(state / table.name, table)
    last = read_numbers(paths.VALIDATION)[-1]
    write_json(
        paths.TRAINING_METRICS,
        {
            "updates": progress.update,
            "epochs": progress.epoch + 1,
            "parameters": parameters,
            **{f"valid_{name}": last[name] for name in ("nll", "perplexity", "accuracy")},
            f"valid_{_OUTPUT_SCORES[params.download.task].name}": last[paths.VALIDATION_SCORE],
            "minutes": round(progress.seconds / 60, 1),
            "tokens_per_second": round(progress.target_tokens / progress.seconds),
        },
    )


def _stop_flag() -> Callable[[], bool]:
    """Make the stop signals set a flag, which the trainer reads once an update, instead of interrupting one. The first is answered."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if not asked and os.environ.get("RANK", "0") == "0":
            with suppress(OSError):  # Not by `print`, which the signal may have interrupted. The line feed leaves a bar that is drawn.
                os.write(sys.stderr.fileno(), b"\n" * sys.stderr.isatty() + b"stopping after this update, then saving\n")
        asked.append(number)

    handle_stop_signals(ask)
    return lambda: bool(asked)
