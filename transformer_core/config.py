"""The schema of params.yaml: a frozen section for each stage, plus `model` (tracked) and `machine` (untracked).

Every key of a stage's section must be in the file, so params.yaml records all settings of a run. Only the keys of `model`, which override
a preset, and of `machine`, which cannot change a result, have defaults.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, create_model

from transformer_core.errors import UserError, configuration_error, did_you_mean
from transformer_core.places import Place
from transformer_core.schema import Language, Name, PositiveInt, Probability, Section, Share, validate_document, words
from transformer_core.sizes import ModelSize, architectures
from transformer_core.tasks import Task, Tokenizer, TreeOrder, is_language, task_of
from transformer_core.yaml_io import read_yaml

PARAMS_FILE = Path("params.yaml")
# Folder of the models from which stages bpe and train can start.
PRETRAINED = Path("pretrained")
# The largest `max_extra` of a request to a served model.
MOST_EXTRA = 1024
# Most tokens of a source, without its end token, if no other bound is asked for: memory grows with the square of the length.
MOST_INPUT = 1024

# Most hypotheses of a beam search; memory grows with them.
Beam = Annotated[int, Field(gt=0, le=100)]
# An exponent of the length penalty: the paper's is 0.6, and larger ones lead to numbers that overflow.
Alpha = Annotated[float, Field(ge=0, le=10)]
# MLflow refuses / and : in such a name, and quotes it in a filter.
ModelName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f/:'\"]{1,250}$", description="a name without / : ' and \"")]
Precision = Literal["auto", "bf16", "fp16", "float32", "float64"]
DecodingPrecision = Literal[Precision, "int8"]
CTranslate2Precision = Literal["float32", "int8"]
EngineName = Literal["torch", "ctranslate2"]
EngineOption = Literal["auto", EngineName]
Penalty = Literal["wu", "power"]
Modifier = Literal["upper", "title", "punctuation", "typos", "noise"]
# What a validation measures whatever the task. `train.best_by` is one of these or the main score of the task.
MEASURES = ("nll", "perplexity", "accuracy")
# Name of the score by a command (external.py) in settings and files.
COMET = "comet"
_SPECIAL = frozenset({"<pad>", "<unk>", "<s>", "</s>"})


class Download(Section):
    """The corpus and its direction. A target that is no language selects another task than translation, `tree` parsing."""

    corpus: Name = words("the corpus: a file of `corpora/` or a packaged one ([data.md](data.md))")
    source: Language = words("source language")
    target: Language = words("target language; `tree` trains a parser ([parsing.md](parsing.md))")

    @property
    def task(self) -> Task:
        return task_of(self.target)


def _check_pretrained(name: str) -> str:
    """Refuse a path: a model to start from must be in `PRETRAINED`, where DVC sees it, and not be an output of this pipeline."""
    if not re.fullmatch(r"\w[\w.-]*", name) or name == "None":
        raise ValueError("not the name of a folder")
    return name


Pretrained = Annotated[str, AfterValidator(_check_pretrained), Field(description=f"the name of a folder in {PRETRAINED}/")]


class PairScorer(Section):
    """A command that scores pairs, and the lowest score of a pair that is kept."""

    command: Name = words("the command")
    threshold: float = words("pairs with a lower score are dropped")
    part: Name | None = words("the `name` of sources whose pairs alone are scored; empty: all pairs", None)


class Clean(Section):
    """Rules that drop training pairs; null or false turns a rule off."""

    max_words: PositiveInt | None = words("most words on a side; empty: any")
    max_ratio: Annotated[float, Field(ge=1)] | None = words("largest ratio of the sides' words; empty: any")
    max_length_ratio: Annotated[float, Field(gt=1)] | None = words(
        "largest factor between a pair's ratio of characters and the median; empty: any"
    )
    drop_copies: bool = words("drop pairs with equal sides")
    drop_foreign: bool = words("drop pairs with a side mostly in an alphabet that validation and test do not use")
    drop_other_languages: bool = words("drop pairs with a side surely in another language")
    drop_overlap: bool | Literal["pairs"] = words("drop pairs with a side of validation or test, ignoring case; `pairs`: with both")
    drop_duplicates: bool = words("drop repeated pairs")
    drop_case_duplicates: bool = words("drop repeated pairs, ignoring case")
    drop_near_duplicates: bool = words("drop repeated pairs, ignoring case, punctuation and which digits")
    drop_repeated_targets: bool = words("keep, of pairs with the same target, the one with the best score, or the first without scores")
    on_invalid_utf8: Literal["stop", "drop"] = words("`stop` with an error, or `drop` the pair")
    drop_worst: Probability = words("share of the pairs to drop for the highest noise scores by two models ([data.md](data.md#cleaning))")
    score_by: Pretrained | None = words("folder of `pretrained/` with these, `forward/` and `backward/`")
    scorers: list[PairScorer] = words("commands that score pairs, each with a [threshold](data.md#cleaning)")
    placeholders: Probability = words("share of the pairs that get [placeholders](data.md#placeholders) beside their own; 0: none")
    tree_order: TreeOrder = words("of the symbols of trees: `top-down` or `in-order` ([parsing.md](parsing.md#data))", "top-down")
    tree_tags: bool = words("words in trees have their tags", default=False)


def _check_symbols(symbols: list[str]) -> list[str]:
    """Refuse symbols that SentencePiece cannot hold: it splits at white space first, and its special tokens are reserved."""
    if len(set(symbols)) < len(symbols) or any(not re.fullmatch(r"\S+", symbol) or symbol in _SPECIAL for symbol in symbols):
        raise ValueError("a symbol twice, with white space, or a special token")
    return symbols


class Bpe(Section):
    """The joint subword vocabulary of both languages (paper 5.1)."""

    init_from: Pretrained | None = words("folder of `pretrained/` whose vocabulary is used; empty: learn one")
    vocab_size: Annotated[int, Field(gt=16)] = words("V, the number of token ids, special ones included; of `symbols` an estimate")
    type: Literal["bpe", "unigram", "symbols"] = words("`bpe`, `unigram` (SentencePiece) or [`symbols`](data.md#symbols)")
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = words("share of the characters that get an id; others are unknown")
    sample: PositiveInt | None = words("training pairs to learn from, drawn at random; empty: all")
    seed: NonNegativeInt = words("seed of that draw")
    user_symbols: Annotated[
        list[str],
        AfterValidator(_check_symbols),
        Field(description="a list of different texts without white space, none of them a special token"),
    ] = words("texts that are always one token, such as the tags of the corpus")
    byte_fallback: bool = words("read and write characters without an id as their bytes, for which 256 of the ids are kept")
    lowercase: bool = words("lowercase all text: the model outputs lowercase; not for a parser")
    normalise: list[Literal["width", "quotes", "nfkc"]] = words("[forms of characters](data.md#forms-of-characters) that become one")


class Binarize(Section):
    """Largest number of tokens of a side; longer training pairs are left out and counted."""

    max_tokens: PositiveInt = words("most tokens on a side; longer training pairs are left out")


# The fields of section `model`: a preset, and each key of the architectures' sizes, which need not be set.
_MODEL: dict[str, Any] = {"architecture": (Literal[tuple(architectures())], "transformer"), "preset": (Name, ...)}
for _entry in architectures().values():
    for _key, _type in get_type_hints(_entry.size, include_extras=True).items():
        _MODEL.setdefault(_key, (_type | None, None))


class Model(create_model("_Model", __base__=Section, **_MODEL)):  # type: ignore[misc]
    """Name of a preset of an architecture; every other key overrides a value of the preset (symbols as in the paper's Table 3)."""


def resolve(model: Model) -> ModelSize:
    """Return the sizes of a `model` section: the preset of its architecture, overridden by the section's other keys.

    Raises `UserError` (78): an unknown preset, a key of another architecture, or sizes that cannot be built.
    """
    architecture = architectures()[model.architecture]
    if model.preset not in architecture.presets:
        message = f"model.preset: no preset of the architecture {model.architecture} is called {model.preset!r}"
        remedy = did_you_mean(model.preset, architecture.presets, f"There are: {', '.join(architecture.presets)}.")
        raise configuration_error(message, remedy)
    settings = model.model_dump(exclude={"preset", "architecture"}, exclude_none=True)
    if foreign := sorted(settings.keys() - {key.name for key in fields(architecture.size)}):
        raise configuration_error(f"model.{foreign[0]}: the architecture {model.architecture} has no such setting")
    return architecture.presets[model.preset].changed(settings)


class MixStage(Section):
    """A stage of a training: its end, and the weights with which its epochs draw pairs of the corpus' parts; none of the others."""

    until: Annotated[float, Field(gt=0, description="a number of updates, or a share of them below 1")] | None = None
    weights: Annotated[
        dict[str, Annotated[float, Field(gt=0, le=1_000_000)]], Field(min_length=1, description="for one part or more a weight above 0")
    ]


class Train(Section):
    """Updates, batches in tokens, the paper's optimiser and schedule (paper 5.1 to 5.4)."""

    init_from: Pretrained | None = words("folder of `pretrained/` with the weights to start from; empty: random")
    updates: PositiveInt = words("largest number of updates")
    tokens_per_update: PositiveInt = words("most tokens of an update on each side, without padding, on all devices")
    tokens_per_microbatch: PositiveInt = words("size limit of a micro-batch: sentences times longest side; lower it if memory runs out")
    learning_rate_factor: PositiveFloat = words("factor of the paper's learning rate (5.3, eq. 3), which has 1.0")
    warmup: PositiveInt = words("updates over which it rises; a shorter one also rises higher, by 1 / sqrt(warmup)")
    cooldown: Share = words("share of the updates, at the end, over which it falls to almost zero; the paper has none")
    adam_beta1: Probability = words("of Adam (5.3)")
    adam_beta2: Probability = words("of Adam")
    adam_epsilon: PositiveFloat = words("of Adam")
    label_smoothing: Probability = words("epsilon of label smoothing (5.4)")
    bpe_dropout: Probability = words("probability of leaving out a merge ([BPE-dropout](data.md#bpe-dropout))")
    modifiers: dict[Modifier, Probability] = words("share of the pairs that get each of the [modifiers](data.md#modifiers), in every epoch")
    r_drop: NonNegativeFloat = words("weight of R-Drop, at twice the time ([improve.md](improve.md)); 0: off")
    mix: Annotated[list[MixStage], Field(min_length=1)] | None = words(
        "stages with weights of the corpus' parts ([mixes](data.md#mixes)); empty: every pair once an epoch"
    )
    max_skipped: NonNegativeInt = words("skipped updates (NaN, infinity) in a row before the last saved state is restored")
    precision: Precision = words("of matrix products; `auto`: bf16 where fast, else fp16 on a GPU, float32 on a CPU")
    validate_every: PositiveInt = words("updates between validations, a multiple of `save_every`")
    bleu_sentences: PositiveInt = words("sentences that a validation translates greedily for its score")
    best_by: str = words("measure of the best checkpoints: `nll`, `perplexity`, `accuracy`, `bleu`, `comet` or `f1`")
    comet: Name | None = words("command for [COMET](evaluation.md#comet) of the same sentences")
    patience: NonNegativeInt = words("validations without a better one after which training ends; 0: never")
    save_every: PositiveInt = words("updates between saves of state and checkpoint")
    keep: PositiveInt = words("last checkpoints to keep")
    keep_best: NonNegativeInt = words("best checkpoints to keep beside them")
    seed: NonNegativeInt = words("seed of weights, batches and dropout")

    @property
    def microbatches(self) -> int:
        """Number of micro-batches in a full update; the devices share them."""
        return -(-self.tokens_per_update // self.tokens_per_microbatch)

    def busy(self, devices: int) -> float:
        """Return how many devices have work on average: they take micro-batches in turn, and some may be idle in an update's last turn."""
        return self.microbatches / -(-self.microbatches // devices)

    @property
    def segments_anew(self) -> bool:
        """Whether the loader segments each update anew, with BPE-dropout or modified text."""
        return self.bpe_dropout > 0 or any(self.modifiers.values())

    @property
    def passes(self) -> int:
        """Number of times that an update computes each of its pairs."""
        return 2 if self.r_drop else 1

    @property
    def stage_ends(self) -> list[int]:
        """The updates after which each stage of the mix but the last ends."""
        ends = [stage.until or self.updates for stage in (self.mix or [])[:-1]]
        return [round(end if end >= 1 else end * self.updates) for end in ends]

    @property
    def without_effect(self) -> set[str]:
        """Settings that change no weights: the end of training, what is kept and what is measured.

        `updates` only if neither the cooldown nor a stage of the mix is a share of it.
        """
        by_share = self.cooldown or any(stage.until and stage.until < 1 for stage in self.mix or [])
        return {"patience", "keep", "keep_best", "validate_every", "bleu_sentences"} | (set() if by_share else {"updates"})

    @property
    def warning(self) -> str:
        """A line about a warm-up that is cut off by the cooldown or the end; empty if it is not."""
        rising = self.updates - round(self.cooldown * self.updates)
        if self.warmup <= rising:
            return ""
        found = f"{self.warmup:,} updates, of which {rising:,} come before the cooldown or the end"
        return f"train.warmup: {found}. Lower it, or raise train.updates."


class Average(Section):
    """The model that translates: the mean of checkpoints (paper 6.1), and its shortlist."""

    of: Literal["last", "best"] = words("`last` or `best` checkpoints (by `train.best_by`)")
    count: PositiveInt = words("number of checkpoints whose mean is the model (6.1)")
    shortlist: NonNegativeInt = words("size of a [shortlist](decoding.md#shortlists) for each source subword; 0: none")


class Decode(Section):
    """Beam search (paper 6.1): at most source length + `max_extra` tokens."""

    engine: EngineName = words("`torch`, or `ctranslate2` for Transformers ([engines](decoding.md#engines))")
    precision: DecodingPrecision = words("of weights and products; CTranslate2 has `float32` and `int8`; `auto` as in train")
    shortlist: bool = words("search among the shortlist's subwords")
    ensemble: Pretrained | None = words("folder of `pretrained/` with models that decode together with `models/averaged`", None)
    beam: Beam = words("K, hypotheses per sentence; 1 is greedy")
    penalty: Penalty = words("length penalty: `wu` is ((5 + length) / 6)^alpha (6.1), `power` is length^alpha")
    alpha: Alpha = words("exponent of the length penalty")
    max_extra: PositiveInt = words("most tokens of a translation beyond those of its source (6.1)")
    batch_tokens: PositiveInt = words("most source tokens in a batch, padding included; it bounds memory")


# The search of models and commands that name no other (paper 6.1).
PAPER_SEARCH = Decode(
    engine="torch", precision="float32", shortlist=False, beam=4, penalty="wu", alpha=0.6, max_extra=50, batch_tokens=4096
)


class Evaluate(Section):
    """Scores and report."""

    allow_tokenised: bool = words("accept references that look [tokenised](evaluation.md#tokenised-references)")
    tokenize: Tokenizer | None = words("sacreBLEU's tokeniser for BLEU; empty: by the target ([evaluation.md](evaluation.md#which-bleu))")
    examples: PositiveInt = words("example sentences in the report")
    comet: Name | None = words("command for [COMET](evaluation.md#comet)")


class Publish(Section):
    """Name in the MLflow model registry; the versions of a name are compared with each other."""

    name: ModelName = words("name in the MLflow registry; versions of a name are compared")
    by: Literal["main", "comet"] = words("what decides on the champion: `main` (BLEU or F1) or `comet`")


class Machine(Section):
    """Settings that cannot change a result: they are no DVC parameters and not part of the fingerprint."""

    devices: PositiveInt | None = words("processes that train together on a machine; empty: one per GPU, else one per core", None)
    threads: PositiveInt | None = words("threads of each of these processes on a CPU; empty: they share the cores", None)
    workers: PositiveInt | None = words("processes that clean and encode text; empty: one per core, fewer for short texts", None)
    scheduler: Name | None = words("Dask's in their place: `tcp://HOST:8786` or its file ([data.md](data.md#several-machines))", None)
    mirror: Name | None = words("folder in which files are looked up before they are downloaded ([data.md](data.md#fetching))", None)
    places: dict[str, Place] = words("where a stage runs if not here: Slurm, Kubernetes or a work pool ([cluster.md](cluster.md))", {})
    grace_seconds: PositiveInt = words("time that a training has to save its state when it is stopped", 120)
    patience_hours: PositiveFloat = words("time for which a stage that a lost service or node ended is tried again without progress", 12.0)
    limit_hours: PositiveFloat | None = words("time after which a stage of the flow must save and end, to be tried again", None)
    stalled_minutes: PositiveFloat = words("time without an update after which a training is ended, to be tried again", 60.0)
    alarm_url: Name | None = words("webhook (as Slack's) that is told of trouble; may name an environment variable: `$HOOK`", None)
    alarm_disk_gb: NonNegativeFloat = words("free space of a training's disk below which it is told", 1.0)
    alarm_score: NonNegativeFloat | None = words("main score of a test set below which it is told", None)
    price_per_hour: NonNegativeFloat | None = words("price of an hour of one machine, in any currency", None)
    tracking_uri: Name | None = words("address of MLflow's record; empty: `$MLFLOW_TRACKING_URI`, else `mlflow.db`", None)

    def nodes(self, stage: str) -> int:
        """Return the number of machines that a stage uses: those of its place, one here."""
        return self.places[stage].nodes if stage in self.places else 1


class Params(Section):
    """All sections of params.yaml."""

    download: Download
    clean: Clean
    bpe: Bpe
    binarize: Binarize
    model: Model
    train: Train
    average: Average
    decode: Decode
    evaluate: Evaluate
    publish: Publish
    machine: Machine = Machine()

    @property
    def parent(self) -> Path | None:
        """Directory of the model that is trained further with its own vocabulary, and is scored beside its child."""
        return PRETRAINED / self.train.init_from if self.train.init_from and self.bpe.init_from else None


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a params file. Raises `UserError` (78): see `check_params`."""
    return check_params(read_yaml(path), path)


def check_params(document: object, path: Path = PARAMS_FILE) -> Params:
    """Return the settings of a document.

    Raises `UserError` (78), which names file and key: a line for each wrong value; if there is none, one line for the first values from
    which no model can be built or that contradict each other.
    """
    params = validate_document(Params, document, path)
    try:
        size = resolve(params.model)
    except UserError as error:
        raise configuration_error(f"{path}: {error.message}", error.remedy) from None
    for key, fault, remedy in _contradictions(params, size):
        raise configuration_error(f"{path}: {key}: {fault}", remedy)
    return params


def _contradictions(params: Params, size: ModelSize) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the fault and the remedy of each contradiction; the model has these sizes."""
    train, average, binarize, download = params.train, params.average, params.binarize, params.download
    if train.validate_every % train.save_every:
        yield "train.validate_every", f"must be a multiple of train.save_every ({train.save_every}), got {train.validate_every}", ""
    key, kept, every = ("keep", train.keep, "save_every") if average.of == "last" else ("keep_best", train.keep_best, "validate_every")
    if average.count > kept:
        yield "average.count", f"must be at most train.{key} ({kept}), got {average.count}", "Keep more checkpoints or average fewer."
    steps = getattr(train, every)
    if (train.updates - 1) // steps + 1 < average.count:
        fault = f"{train.updates} updates in steps of {steps} give fewer checkpoints than average.count ({average.count})"
        yield f"train.{every}", fault, "Save more often or average fewer."
    ends = [0, *train.stage_ends, train.updates]
    if any(stage.until is None for stage in (train.mix or [])[:-1]) or any(end <= begin for begin, end in pairwise(ends)):
        fault = f"stages must end one after the other before train.updates, got ends after {', '.join(map(str, ends[1:]))}"
        yield "train.mix", fault, "Each but the last needs `until`."
    if train.bpe_dropout and params.bpe.init_from is None and params.bpe.type != "bpe":
        fault = f"must be 0 where bpe.type is {params.bpe.type}, got {train.bpe_dropout}"
        yield "train.bpe_dropout", fault, "Only BPE has merges to leave out."
    if train.r_drop and not any(getattr(size, key) for key in size.keys_that_are("dropout")):
        remedy = "It compares two passes, which are equal without dropout. Set model.dropout, for example to 0.1."
        yield "train.r_drop", f"must be 0 where the model has no dropout, got {train.r_drop:g}", remedy
    if binarize.max_tokens > min(train.tokens_per_microbatch, train.tokens_per_update):
        bounds = f"train.tokens_per_microbatch ({train.tokens_per_microbatch}) and train.tokens_per_update ({train.tokens_per_update})"
        fault = f"a pair of {binarize.max_tokens} tokens does not fit the smaller of {bounds}"
        yield "binarize.max_tokens", fault, "Lower it or raise them."
    if (only := architectures()[size.architecture].target) not in (None, download.target):
        yield "model.architecture", f"{size.architecture} is for download.target {only} alone, got {download.target}", "Choose another."
    if params.bpe.lowercase and download.task.cased_because:
        yield "bpe.lowercase", f"must be false where download.target is {download.target}, got true", download.task.cased_because
    if bool(params.clean.drop_worst) != bool(params.clean.score_by):
        needed = "be 0" if params.clean.drop_worst else "be above 0"
        fault = f"must {needed} where clean.score_by is {params.clean.score_by or 'null'}, got {params.clean.drop_worst:g}"
        yield "clean.drop_worst", fault, "The two models of clean.score_by find the worst pairs."
    if params.decode.shortlist and not average.shortlist:
        yield "decode.shortlist", "must be false where average.shortlist is 0, got true", "Set average.shortlist, for example to 100."
    if params.decode.ensemble and params.decode.engine != "torch":
        yield "decode.engine", f"must be torch with decode.ensemble, got {params.decode.engine}", "CTranslate2 has no ensembles."
    if params.decode.precision == "int8" and params.decode.engine == "torch":
        yield "decode.precision", "must not be int8 with decode.engine torch", "Set decode.engine: ctranslate2."
    if params.decode.shortlist and params.decode.ensemble:
        yield "decode.shortlist", "must be false with decode.ensemble, got true", ""
    if average.shortlist and download.task.constraint:
        yield "average.shortlist", f"must be 0 where download.target is {download.target}, got {average.shortlist}", ""
    if params.decode.engine == "ctranslate2":
        if download.task.constraint:
            yield "decode.engine", f"must be torch where download.target is {download.target}, got ctranslate2", ""
        if params.decode.precision not in get_args(CTranslate2Precision):
            yield "decode.precision", f"must be float32 or int8 with decode.engine ctranslate2, got {params.decode.precision!r}", ""
        for key, value in params.model.model_dump(exclude={"preset", *size.keys_that_are("exported")}, exclude_none=True).items():
            yield f"model.{key}", f"cannot be converted to CTranslate2, got {value!r}", "Set decode.engine: torch."
    if not is_language(download.source):
        yield "download.source", f"must be a language, {download.source} can be the target alone", ""
    for section, key, asked in ("train", "train.best_by", train.best_by), ("evaluate", "publish.by", params.publish.by):
        command = getattr(params, section).comet
        if command and not is_language(download.target):
            yield f"{section}.comet", f"must be empty where download.target is {download.target}", ""
        if asked == COMET and not command:
            yield key, f"{asked} needs a command in {section}.comet", "docs/evaluation.md says how to install one."
    if train.best_by not in (*MEASURES, download.task.key, COMET):
        fault = f"must be {', '.join(MEASURES)} or {download.task.key}, the score of {download.task.name}, got {train.best_by!r}"
        yield "train.best_by", fault, ""
    for stage, place in params.machine.places.items():
        if place.nodes > 1 and stage != "train":
            yield f"machine.places.{stage}.nodes", f"must be 1, for training alone uses several nodes, got {place.nodes}", ""
    if download.source == download.target:
        yield "download.target", f"must differ from download.source, got {download.target!r}", ""
