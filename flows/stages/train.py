"""Stage train: binarized pairs to the last checkpoints and the curves of the training.

One device trains in this process; several are the ranks of a torchrun, its child process, which runs this module again.
"""

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from flows.places.ranks import NodeGroup, exit_report, launch
from flows.process import paths
from flows.process.gpus import free_gpus
from flows.process.notices import watched
from flows.process.progress import resumed_line
from flows.process.runner import echo
from flows.process.signals import ignore_stop_signals, stop_flag
from flows.record.documents import read_manifest
from flows.record.finished import mark_finished, only_outputs_are_missing
from flows.record.recorder import TABLES, fingerprint_of, recording
from flows.record.run import records
from flows.record.usage import RUN, sampling
from transformer_core.config import MEASURES, MOST_INPUT, PARAMS_FILE, PRETRAINED, Params, resolve
from transformer_core.corpus.text import read_lines, splits_of
from transformer_core.corpus.tokens.binary import check_split, open_split, read_meta
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.shortlist import check_aligner
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.errors import Interrupted, UserError, configuration_error
from transformer_core.evaluation.diagnosis import fit, unread_source
from transformer_core.files import locked, new_directory, read_json, read_numbers, write_json
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, ModelConfig, Training, Vocabulary, load_model
from transformer_core.models.precision import weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.training.checkpoint import FINISHED, STORED, TRAINING_LOCK, StateDirectory, is_whole, state_files, state_of, update_of
from transformer_core.training.devices import Rank, default_devices, matrix_rate, process_group
from transformer_core.training.records import Observer, Progress
from transformer_core.training.start import new_model, take_over
from transformer_core.training.store import store_of
from transformer_core.training.trainer import Trainer
from transformer_core.training.validation import Validation

# Of the sources: a few longer ones do not teach a model to translate such lines (see `most_tokens`).
_USUAL = 0.999


def run(params: Params) -> str:
    """Train here, or through torchrun if several devices, of this machine or of several, train together."""
    _check_data(params)
    if params.train.warning:
        echo(params.train.warning, sys.stderr)
    group, state = NodeGroup.from_environment(), state_of(fingerprint_of(params))
    first = group is None or group.rank == 0
    _fetch(state)
    if only_outputs_are_missing(params.train, state, first):
        if first:
            train(params)
    else:
        most = params.machine.devices or -(-params.train.microbatches // (group.nodes if group else 1))
        with free_gpus(most), watched():
            devices = params.machine.devices or default_devices(most)
            if devices == 1 and group is None:
                train(params)
            else:
                launch(devices, group)
    if group is not None and not first:
        return f"node {group.rank} of {group.nodes}: done; the outputs are on node 0"
    ignore_stop_signals()  # All outputs are written and the rest is quick, but DVC saves no outputs of a stopped stage.
    mark_finished(params.train, state)
    metrics, validation = read_json(paths.TRAINING_METRICS), read_numbers(paths.VALIDATION)
    for line in filter(None, (fit(read_numbers(paths.UPDATES), validation), unread_source(validation[-1], 0))):
        echo(line, sys.stderr)
    return (
        f"{paths.CHECKPOINTS}: {metrics['updates']:,} updates in {metrics['minutes']:.1f} minutes, "
        f"{metrics['tokens_per_second']:,} target tok/s, valid PPL {metrics['valid_perplexity']:.2f}"
    )


def _fetch(state: Path) -> None:
    """Fetch the training's state from the store, with checkpoints and record, if it is later than the one that is here."""
    store = store_of(state)
    here = next((update_of(file) for file in state_files(state) if is_whole(file)), -1)
    if store is not None and (total := store.newest_state(state, here)):
        store.fetch(RUN, state / RUN)
        store.fetch_folder("checkpoints", state / "checkpoints")
        store.fetch_folder("record", records() / (state / RUN).read_text(encoding="utf-8"))
        store.fetch(total, state / total)  # Last: the state counts from now on.


def _check_data(params: Params) -> None:
    """Check that data, vocabulary and settings belong together.

    Raises `UserError`: 65 if a file of the data is damaged or the data has another vocabulary; 78 if the data is of another corpus, for
    BPE-dropout with a vocabulary that is not BPE, if there is no model in `train.init_from`, or are two, and if the shortlist's aligner is
    missing.
    """
    places = params.machine.places
    if params.average.shortlist and places.get("train") == places.get("average"):  # Stage average needs it here, after the training.
        check_aligner()
    read_manifest(params)
    for split in ("train", "valid"):
        check_split(paths.BINARIZED / split)
    binarized, subword = read_meta(paths.BINARIZED / "train").vocabulary_hash, Subword.load(paths.SUBWORD_MODEL)
    if binarized != subword.hash:
        fault = f"{paths.BINARIZED}: vocabulary {binarized[:12]}, but {paths.SUBWORD_MODEL} is {subword.hash[:12]}"
        raise UserError(fault, "Run the whole pipeline: dvc repro")
    if params.train.bpe_dropout and not subword.is_bpe:
        fault = f"train.bpe_dropout: must be 0 where {paths.SUBWORD_MODEL} is no BPE model, got {params.train.bpe_dropout}"
        raise configuration_error(f"{PARAMS_FILE}: {fault}", "Only BPE has merges to leave out.")
    parent = params.train.init_from
    if parent is not None and not (PRETRAINED / parent / WEIGHTS).exists():
        fault = f"{PARAMS_FILE}: train.init_from: {PRETRAINED / parent} holds no {WEIGHTS}"
        raise configuration_error(fault, f"See {PRETRAINED}/README.md.")


def train(params: Params) -> None:
    """Train in this process, alone or as one of torchrun's ranks; rank 0 writes the stage's outputs, and the state is kept.

    Raises `Interrupted`: stopped, state saved. `UserError` (69): another process trains the same, perhaps from another clone or machine
    with the same $TRANSFORMER_STATE.
    """
    stop_asked = stop_flag()
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
    state, precision = state_of(fingerprint), params.train.precision
    with ExitStack() as stack:
        model = _new_model(params).to(rank.device, weights_dtype(precision))
        _check_positions(model)
        parameters, recorder = sum(parameter.numel() for parameter in model.parameters()), None
        if rank.index == 0:
            recorder = stack.enter_context(recording(params, fingerprint, state, rank, parameters, exit_report()))
        split, subword = open_split(paths.BINARIZED / "train"), Subword.load(paths.SUBWORD_MODEL)
        references = list(read_lines(paths.RAW / f"valid.{params.download.target}"))
        if params.bpe.lowercase:  # A model of lowercase text outputs lowercase text.
            references = list(map(str.lower, references))
        valid, task = open_split(paths.BINARIZED / "valid"), params.download.task
        validation = Validation(model, valid, subword, references, params.train, task, rank, stop_asked)
        if validation.left_out and rank.index == 0:
            echo(f"valid: {validation.left_out:,} pairs of more than {MOST_INPUT:,} tokens: not in the perplexity, sources cut", sys.stderr)
        trainer = Trainer(
            model,
            split,
            params.train,
            rank,
            StateDirectory(state, params.train.keep, store_of(state), lambda: _beside(state)),
            recorder or Observer(),
            validation.scores,
            stop_asked,
            matrix_rate(rank, precision),
            BpeDropout(subword, split, params.train) if params.train.segments_anew else None,
        )
        resumed = trainer.resume()
        stack.enter_context(sampling(state))  # The ranks have met, so the first one has begun the record.
        if rank.index == 0:  # A finished training may go on to a later end. If it has reached its end, `run` writes the file again.
            for file in (STORED, FINISHED):
                (state / file).unlink(missing_ok=True)
        if recorder is not None and resumed:
            echo(resumed_line(trainer.progress.update), sys.stderr)
        elif recorder is not None:
            recorder.begin()
        trainer.check_memory(validation.try_largest)
        progress = trainer.run()
        if rank.index == 0:
            _write_outputs(params, fingerprint, state, progress, parameters)


def _beside(state: Path) -> dict[str, Path]:
    """Return what else a training goes on from elsewhere: the id of its record, and the record's tables."""
    folder = records() / (state / RUN).read_text(encoding="utf-8")
    return {RUN: state / RUN} | {f"record/{file.name}": file for file in folder.glob("[!.]*.*")}


def _new_model(params: Params) -> TranslationModel:
    """The model before its first update, random or of `train.init_from`. Raises `UserError` (78): that has another vocabulary or sizes."""
    size, subword = resolve(params.model), Subword.load(paths.SUBWORD_MODEL)  # Its hash is the data's, see `_check_data`.
    fresh = new_model(size, subword, params.train.seed)
    if params.train.init_from is None:
        return fresh
    directory = PRETRAINED / params.train.init_from
    model, config = load_model(directory)
    if params.bpe.init_from is not None and config.vocabulary.hash != subword.hash:
        fault = f"{directory} has vocabulary {config.vocabulary.hash[:12]}, the data {subword.hash[:12]}"
        raise configuration_error(f"{PARAMS_FILE}: train.init_from: {fault}", "Name the same model in bpe.init_from, or none.")
    found, wanted = (asdict(sizes.effective()) for sizes in (config.model, size))
    if found != wanted:
        different = ", ".join(f"{key} {found[key]} instead of {value}" for key, value in wanted.items() if found.get(key, value) != value)
        fault = f"{PARAMS_FILE}: train.init_from: {directory} has other sizes than section model"
        raise configuration_error(fault, f"It has {different}.")
    if config.vocabulary.hash == subword.hash:
        fresh.load_state_dict(model.state_dict())
    else:
        known = take_over(fresh, model, size, Subword.load(directory / SUBWORD).pieces, subword.pieces)
        echo(f"{directory}: {known:,} of {subword.vocab_size:,} subwords are in its vocabulary, the others are new", sys.stderr)
    return fresh


def _check_positions(model: TranslationModel) -> None:
    """Raise a `UserError` (exit code 78) if a sentence has more tokens than the model has learned positions."""
    if model.most_positions is None:
        return
    # `dvc repro --single-item --pull train` fetches no test set.
    for name in (name for name in splits_of(paths.BINARIZED) if (paths.BINARIZED / name).exists()):
        longest = open_split(paths.BINARIZED / name).longest
        if longest > model.most_positions:
            message = f"{PARAMS_FILE}: model.most_positions: {model.most_positions}, but a sentence of {name} has {longest} tokens"
            raise configuration_error(message, f"Raise it{', or lower binarize.max_tokens' if name == 'train' else ''}.")


def _write_outputs(params: Params, fingerprint: str, state: Path, progress: Progress, parameters: int) -> None:
    """Fill DVC's outputs from the state, which is kept until DVC has stored them, and the record."""
    meta, seconds, run = read_meta(paths.BINARIZED / "train"), round(progress.seconds, 1), (state / RUN).read_text(encoding="utf-8")
    config = ModelConfig(
        model=resolve(params.model),
        vocabulary=Vocabulary(size=meta.vocab_size, hash=meta.vocabulary_hash),
        source=meta.source,
        target=meta.target,
        longest_source=int(np.quantile(open_split(paths.BINARIZED / "train").source.lengths, _USUAL, method="lower")) - 1,
        training=Training(fingerprint=fingerprint, run=run, updates=progress.update, target_tokens=progress.target_tokens, seconds=seconds),
    )
    with new_directory(paths.CHECKPOINTS) as checkpoints:
        shutil.copytree(state / "checkpoints", checkpoints, dirs_exist_ok=True)
        write_json(checkpoints / CONFIG, config.model_dump(mode="json"))
        write_json(checkpoints / paths.CHECKPOINT_SCORES.name, {"best_by": params.train.best_by, "scores": progress.scores})
    paths.TRAINING.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        shutil.copyfile(records() / run / table.name, table)
    last = read_numbers(paths.VALIDATION)[-1]
    write_json(
        paths.TRAINING_METRICS,
        {
            "updates": progress.update,
            "epochs": progress.epoch + 1,
            "parameters": parameters,
            **{f"valid_{name}": last[name] for name in MEASURES},
            f"valid_{params.download.task.key}": last[paths.VALIDATION_SCORE],
            "minutes": round(progress.seconds / 60, 1),
            "tokens_per_second": round(progress.target_tokens / progress.seconds),
        },
    )
