"""Stage train: binarized pairs to the last checkpoints and the curves of the training.

One device trains in this process; several are the ranks of a torchrun, a child of it, which runs this module again.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from flows.cluster.gang import Gang
from flows.process.child import run_child
from flows.process.paths import BINARIZED, CHECKPOINTS, RAW, SCORES, SPLITS, STATE, SUBWORD_MODEL, TRAINING
from flows.process.runner import ENDED_BY, STOP_SIGNALS, follow_starters, run_stage, say, shell_code
from flows.record.journal import Journal
from flows.record.lineage import describe_training, lineage
from flows.record.recorder import SKIPPED, UPDATES, VALIDATION, Recorder
from flows.record.sending import Sender
from flows.record.usage import Usage, device_name
from transformer_core.config import Params, load_params, tracking_uri
from transformer_core.corpus.binary import check_split, open_split, read_meta
from transformer_core.corpus.bpe_dropout import BpeDropout
from transformer_core.corpus.subword import Subword
from transformer_core.corpus.text import read_lines
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error
from transformer_core.evaluation.bleu import corpus_bleu
from transformer_core.evaluation.brackets import corpus_f1
from transformer_core.files import new_directory, only_one, read_json, sha256_of, write_json
from transformer_core.models.architectures import build
from transformer_core.models.directory import CONFIG, WEIGHTS, ModelConfig, Training, Vocabulary, load_model
from transformer_core.models.precision import weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize, resolve
from transformer_core.training.checkpoint import FORMAT, LOCK, StateDirectory, state_files, state_root
from transformer_core.training.devices import Devices, autocast, default_devices, matrix_rate, process_group
from transformer_core.training.records import Observer, Progress
from transformer_core.training.trainer import Trainer
from transformer_core.training.update import seed_everything
from transformer_core.training.validation import score_split

METRICS = TRAINING / "metrics.json"


class _Watched(NamedTuple):
    """The score of greedy outputs in a validation: its name, what counts it, and how many tokens longer than its source one may be."""

    name: str
    score: Callable[[Sequence[str], Sequence[str]], float]
    max_extra: int


# Of each task. The lengths are the paper's (6.1 and 6.3).
_WATCHED = {"translation": _Watched("bleu", corpus_bleu, 50), "parsing": _Watched("f1", corpus_f1, 300)}
_RANK_ENDED = STATE / "exit" / "train-rank.json"


def run(params: Params) -> str:
    """Train here, or through torchrun where several devices, of this machine or of several, train together."""
    _check_data(params)
    gang = Gang.from_environment()
    devices = params.machine.devices or default_devices(-(-params.train.microbatches // (gang.nodes if gang else 1)))
    if devices == 1 and gang is None:
        train(params)
    else:
        _launch(devices, gang)
    if gang is not None and gang.rank > 0:
        return f"node {gang.rank} of {gang.nodes}: trained along; the outputs are on node 0"
    shutil.rmtree(_state(fingerprint(params)))  # Not before here: DVC takes no outputs of a stage that was stopped.
    metrics = read_json(METRICS)
    return (
        f"{CHECKPOINTS}: {metrics['updates']:,} updates in {metrics['minutes']:.1f} minutes, "
        f"{metrics['tokens_per_second']:,} target tok/s, valid PPL {metrics['valid_perplexity']:.2f}"
    )


def _check_data(params: Params) -> None:
    """See that data, vocabulary and settings belong together.

    Raises:
        UserError: exit code 65 where a file of the data is damaged or the data is of another vocabulary; 78 for BPE-dropout with a
            vocabulary that is not BPE, and where there is no model in `train.init_from`.
    """
    for split in ("train", "valid"):
        check_split(BINARIZED, split)
    binarized, subword = read_meta(BINARIZED).vocabulary_hash, Subword.load(SUBWORD_MODEL)
    if binarized != subword.hash:
        raise UserError(
            f"{BINARIZED}: vocabulary {binarized[:12]}, but {SUBWORD_MODEL} is {subword.hash[:12]}", "Run the whole pipeline: dvc repro"
        )
    if params.train.bpe_dropout and not subword.is_bpe:
        raise configuration_error(
            f"train.bpe_dropout: must be 0 where {SUBWORD_MODEL} is no BPE model, got {params.train.bpe_dropout}",
            "Only BPE has merges to leave out.",
        )
    parent = params.train.init_from
    if parent is not None and not (Path(parent) / WEIGHTS).exists():
        raise configuration_error(f"train.init_from: {parent} holds no {WEIGHTS}", "Name the directory of a model.")


def _launch(devices: int, gang: Gang | None) -> None:
    """Run one rank a device under torchrun; a stop asked of this process makes them save and end, on all machines of a gang.

    Raises:
        UserError: what a rank ended with; exit code 69 where another machine of the gang was lost or never came, 75 where a signal
            from elsewhere ended a rank.
        Interrupted: the ranks were stopped and have saved.
    """
    _RANK_ENDED.unlink(missing_ok=True)
    where = ["--standalone"] if gang is None else gang.torchrun()
    ranks = [sys.executable, "-m", "flows.cluster.ranks", *where, f"--nproc-per-node={devices}", "-m", "flows.stages.train"]
    # Said here only so that torchrun does not warn of its own choice; each rank sets its threads itself.
    environment = {"OMP_NUM_THREADS": "1"} | (gang.interfaces() if gang else {})
    try:
        code = shell_code(run_child(ranks, lambda line: say(line, sys.stderr), environment=environment))
    except Interrupted:
        if not _RANK_ENDED.exists():
            raise
        code = ExitCode.INTERRUPTED  # The ranks have saved, and say after which update.
    if _RANK_ENDED.exists():
        ended = read_json(_RANK_ENDED)
        if ended["code"] == ExitCode.INTERRUPTED:
            raise Interrupted(ended["message"])
        raise UserError(ended["message"], ended["remedy"], ExitCode(ended["code"]))
    if code and gang is not None:
        message = (
            f"node {gang.rank} of {gang.nodes}: the ranks ended with {code}: another node was lost or did not come to {gang.rendezvous}"
        )
        raise UserError(message, "Their output is above. Run all of them again to go on.", ExitCode.UNAVAILABLE)
    if code > ENDED_BY:
        name = signal.Signals(code - ENDED_BY).name
        remedy = "Run it again to go on from the last state. Was it memory? Then lower train.tokens_per_microbatch."
        raise UserError(f"the ranks were ended by {name}", remedy, ExitCode.INTERRUPTED)
    if code:
        raise RuntimeError(f"the ranks ended with {code} and left no word; their output is above")


def run_rank() -> int:
    """One rank under torchrun, which turns every failure into 1: the rank leaves word of what it was.

    Ranks that were stopped have all saved and end with 0: where one fails torchrun ends the others.
    """
    follow_starters(parent=True)
    try:
        train(load_params())
    except Interrupted as error:
        _leave_word(ExitCode.INTERRUPTED, str(error))
    except UserError as error:
        _leave_word(error.exit_code, error.message, error.remedy)
        return error.exit_code
    return 0


def _leave_word(code: ExitCode, message: str, remedy: str = "") -> None:
    write_json(_RANK_ENDED, {"code": int(code), "message": message, "remedy": remedy})


def train(params: Params) -> None:
    """Train in this process, alone or as one of torchrun's ranks, and let rank 0 write the stage's outputs; the state stays.

    Raises:
        Interrupted: stopped, state saved.
        UserError: exit code 75; another process trains the same, perhaps from another clone or machine with the same $TRANSFORMER_STATE.
    """
    stop_asked = _stop_flag()
    mark = fingerprint(params)
    state = _state(mark)
    with process_group(params.machine.threads) as devices:
        if devices.rank > 0:
            _train(params, mark, state, devices, stop_asked)
            return
        with only_one(state / LOCK, "this training"):
            _train(params, mark, state, devices, stop_asked)
            if stop_asked():  # Whoever asked may have ended DVC, too.
                raise Interrupted("training stopped after its last update, state saved")


def _state(mark: str) -> Path:
    return state_root() / mark[:16]


def _train(params: Params, mark: str, state: Path, devices: Devices, stop_asked: Callable[[], bool]) -> None:
    precision = params.train.precision
    with ExitStack() as stack:
        model = _new_model(params).to(devices.device, weights_dtype(precision))
        _check_positions(model)
        recorder = stack.enter_context(_recording(params, mark, state, devices, model)) if devices.rank == 0 else None
        split, subword = open_split(BINARIZED, "train"), Subword.load(SUBWORD_MODEL)
        trainer = Trainer(
            model,
            split,
            params.train,
            devices,
            StateDirectory(state, params.train.keep),
            recorder or Observer(),
            _validation(params, model, subword, devices, stop_asked),
            stop_asked,
            matrix_rate(devices, precision),
            BpeDropout(subword, split, params.train) if params.train.bpe_dropout else None,
        )
        resumed = trainer.resume()
        _check_same_start(trainer.progress.update, devices)
        if recorder is not None and resumed:
            say(f"going on after update {trainer.progress.update:,}", sys.stderr)
        elif recorder is not None:
            recorder.begin()
        trainer.try_largest()
        progress = trainer.run()
        if devices.rank == 0:
            _write_outputs(params, mark, state, progress, sum(parameter.numel() for parameter in model.parameters()))


def _check_same_start(update: int, devices: Devices) -> None:
    """Raise a `UserError` (exit code 78) where ranks go on after different updates: machines that do not see the same state."""
    updates = set(devices.gathered(update))
    if len(updates) > 1:
        message = f"the nodes would go on after different updates ({', '.join(map(str, sorted(updates)))})"
        raise configuration_error(message, "Set $TRANSFORMER_STATE on all of them to one folder of shared storage.")


def _new_model(params: Params) -> TranslationModel:
    """The model before its first update: random weights, or those of `train.init_from`.

    Raises:
        UserError: exit code 78; that directory holds another vocabulary or a model of other sizes.
    """
    size, meta = resolve(params.model), read_meta(BINARIZED)
    if params.train.init_from is None:
        seed_everything(params.train.seed, 0, 0)
        return build(size, meta.vocab_size)
    directory = Path(params.train.init_from)
    model, config = load_model(directory)
    if config.vocabulary.hash != meta.vocabulary_hash:
        raise configuration_error(
            f"train.init_from: {directory} has vocabulary {config.vocabulary.hash[:12]}, the data {meta.vocabulary_hash[:12]}",
            "Name the same directory in bpe.init_from.",
        )
    if _without_dropout(config.model) != _without_dropout(size):
        raise configuration_error(f"train.init_from: {directory} is of other sizes than section model", f"It is {config.model}.")
    tuned = build(size, meta.vocab_size)
    tuned.load_state_dict(model.state_dict())
    return tuned


def _without_dropout(size: ModelSize) -> dict[str, Any]:
    return {name: value for name, value in asdict(size).items() if not name.endswith("dropout")}


def _validation(
    params: Params, model: TranslationModel, subword: Subword, devices: Devices, stop_asked: Callable[[], bool]
) -> Callable[[], dict[str, float] | None]:
    """Teacher-forced measures of valid, and BLEU or F1 of greedy outputs for `train.bleu_sentences` of it; None after a request to stop."""
    valid, translator = open_split(BINARIZED, "valid"), Translator(model, subword)
    chosen = np.linspace(0, len(valid) - 1, min(params.train.bleu_sentences, len(valid)), dtype=np.int64).tolist()
    lines = list(read_lines(RAW / f"valid.{params.download.target}"))
    references = [lines[number] for number in chosen]
    precision, ranks = params.train.precision, devices.world_size
    watched = _WATCHED[params.download.task]

    def validate() -> dict[str, float] | None:
        scores = score_split(model, valid, devices, precision, stop_asked)
        if scores is None or any(devices.gathered(stop_asked())):
            return None
        mine = [valid.source[number] for number in chosen[devices.rank :: ranks]]
        with autocast(devices.device, precision):
            lists = translator.translate_tokens(mine, Search(beam=1, max_extra=watched.max_extra))
        by_rank = devices.gathered([hypotheses[0].text for hypotheses in lists])
        texts = [by_rank[place % ranks][place // ranks] for place in range(len(chosen))]
        return {**scores, watched.name: watched.score(texts, references)}

    return validate


def _check_positions(model: TranslationModel) -> None:
    """Raise a `UserError` (exit code 78) where a sentence has more tokens than the model has learned positions for."""
    if model.most_positions is None:
        return
    for name in SPLITS:
        split = open_split(BINARIZED, name)
        longest = int(max(split.source.lengths.max(), split.target.lengths.max()))
        if longest > model.most_positions:
            message = f"model.most_positions: {model.most_positions}, but a sentence of {name} has {longest} tokens"
            raise configuration_error(message, f"Raise it{', or lower binarize.max_tokens' if name == 'train' else ''}.")


def fingerprint(params: Params) -> str:
    """SHA-256 over everything that may change the trained weights: tracked settings, data, and the format of the state."""
    meta = read_meta(BINARIZED)
    data = {split: meta.splits[split].files for split in ("train", "valid")}
    settings = params.train.model_dump()
    if params.train.init_from is not None:
        settings["init_from"] = sha256_of(Path(params.train.init_from) / WEIGHTS)
    tracked = {"format": FORMAT, "model": params.model.model_dump(), "train": settings, "vocabulary": meta.vocabulary_hash, "data": data}
    return sha256(json.dumps(tracked, sort_keys=True).encode()).hexdigest()


@contextmanager
def _recording(params: Params, mark: str, state: Path, devices: Devices, model: TranslationModel) -> Iterator[Recorder]:
    """The journal of this training, what sends it to MLflow, and its recorder; the end of the block is the end of the run."""
    journal = Journal(mark, resumed=bool(state_files(state)))
    describe_training(journal, params)
    journal.tags({**lineage(), "device": device_name(devices.device), "ranks": str(devices.world_size)})
    recorder = Recorder(state, journal, params.train.updates, _WATCHED[params.download.task].name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(f"training {parameters:,} parameters on {devices.world_size} x {devices.device.type}", sys.stderr)
    status = "FAILED"
    try:
        with Sender(journal.path, tracking_uri(params.machine)):
            try:
                with Usage(journal, devices.device):
                    yield recorder
                for name in (UPDATES, VALIDATION, SKIPPED):
                    journal.artifact(TRAINING / name, folder="training")
                status = "FINISHED"
            except Interrupted:
                status = "KILLED"
                raise
            finally:
                journal.end(status)
    finally:
        recorder.close()


def _write_outputs(params: Params, mark: str, state: Path, progress: Progress, parameters: int) -> None:
    """Fill DVC's outputs from the state, which is removed only after they are all there."""
    meta = read_meta(BINARIZED)
    config = ModelConfig(
        model=resolve(params.model),
        vocabulary=Vocabulary(size=meta.vocab_size, hash=meta.vocabulary_hash),
        source=meta.source,
        target=meta.target,
        training=Training(
            fingerprint=mark, updates=progress.update, target_tokens=progress.target_tokens, seconds=round(progress.seconds, 1)
        ),
    )
    with new_directory(CHECKPOINTS) as checkpoints:
        shutil.copytree(state / "checkpoints", checkpoints, dirs_exist_ok=True)
        write_json(checkpoints / CONFIG, config.model_dump(mode="json"))
        write_json(checkpoints / SCORES.name, {"best_by": params.train.best_by, "scores": progress.scores})
    TRAINING.mkdir(parents=True, exist_ok=True)
    for name in (UPDATES, VALIDATION, SKIPPED):
        shutil.copyfile(state / name, TRAINING / name)
    last = (state / VALIDATION).read_text(encoding="utf-8").rstrip("\n").rpartition("\n")[2].split(",")
    write_json(
        METRICS,
        {
            "updates": progress.update,
            "epochs": progress.epoch + 1,
            "parameters": parameters,
            "valid_nll": float(last[1]),
            "valid_perplexity": float(last[2]),
            "valid_accuracy": float(last[3]),
            f"valid_{_WATCHED[params.download.task].name}": float(last[4]),
            "minutes": round(progress.seconds / 60, 1),
            "tokens_per_second": round(progress.target_tokens / progress.seconds),
        },
    )


def _stop_flag() -> Callable[[], bool]:
    """Have the stop signals set a flag that the trainer reads once an update, instead of breaking into one."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in STOP_SIGNALS:
        signal.signal(number, ask)
    return lambda: bool(asked)


if __name__ == "__main__":
    raise SystemExit(run_rank() if "TORCHELASTIC_RUN_ID" in os.environ else run_stage("train", run))
