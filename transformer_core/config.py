"""The schema of params.yaml: a frozen section for each stage, plus `model` (tracked) and `machine` (untracked).

docs/settings.md says what each key means, with its unit and its value in two recipes.

Every key of a stage's section must be in the file, so params.yaml records all settings of a run. Only the keys of `model`, which override
a preset, and of `machine`, which cannot change a result, have defaults.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import reprlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from transformer_core.errors import UserError, configuration_error, first_line
from transformer_core.files import repository
from transformer_core.tasks import Task, is_language, task_of

PARAMS_FILE = Path("params.yaml")
# Folder of the models from which stages bpe and train can start.
PRETRAINED = Path("pretrained")
# Files of a model: weights and vocabulary. A folder may hold the vocabulary alone.
_MODEL_FILES = ("model.safetensors", "spm.model")
# Share of the schedule's highest learning rate that a training reaches without a warning.
_FULL_RATE = 0.9
# The largest `max_extra` of a request to a served model.
MOST_EXTRA = 1024
# Most tokens of a source, without its end token, if no other bound is asked for: memory grows with the square of the length.
MOST_INPUT = 1024

Document = TypeVar("Document", bound=BaseModel)

# Far above any sensible setting. The product of two such numbers fits 64 bits.
_MOST = 10**9
# Above every number in a file that a stage writes.
_LARGEST = 10**12

# The message of a wrong value has its field's description, or else pydantic's words.
PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
Count = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
# Most hypotheses of a beam search; memory grows with them.
Beam = Annotated[int, Field(gt=0, le=100)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
# An exponent of the length penalty: the paper's is 0.6, and larger ones lead to numbers that overflow.
Alpha = Annotated[float, Field(ge=0, le=10)]
# Numbers in files that stages write. Bounded, because sums and quotients of them are printed.
Total = Annotated[int, Field(ge=0, le=_LARGEST)]
Quantity = Annotated[float, Field(ge=0, le=_LARGEST)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,1000}$", description="a name")]
# MLflow refuses / and : in such a name, and quotes it in a filter.
ModelName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f/:'\"]{1,250}$", description="a name without / : ' and \"")]
# It becomes part of file names.
Language = Annotated[str, Field(pattern=r"^\w[\w-]{0,50}$", description="a language: letters, digits, dashes and underscores")]
Convolutions = Annotated[
    list[Annotated[list[PositiveInt], Field(min_length=3, max_length=3)]],
    Field(min_length=1),
]
Precision = Literal["auto", "bf16", "fp16", "float32", "float64"]
DecodingPrecision = Literal[Precision, "int8"]
CTranslate2Precision = Literal["float32", "int8"]
# Keys of `model` whose effect the export to CTranslate2 keeps; dropout has none on a translation. Any other key is refused.
CTRANSLATE2_KEYS = frozenset({
    "architecture", "layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "norm", "positions",
    "most_positions", "tied", "dropout", "attention_dropout", "relu_dropout",
})  # fmt: skip
Penalty = Literal["wu", "power"]
# What a validation measures whatever the task. `train.best_by` is one of these or the main score of the task.
MEASURES = ("nll", "perplexity", "accuracy")
_SPECIAL = frozenset({"<pad>", "<unk>", "<s>", "</s>"})
# Types of errors of pydantic, of a section and of a tagged union.
_UNKNOWN_KEY = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_MISSING_KEY = frozenset({"missing", "missing_argument"})
# A file of another kind has many faults, of which the first are read and shown.
_FAULTS_READ, _FAULTS_SHOWN = 100, 10
_OTHER_FORMAT = "Another version of transformer-pipeline wrote it: make it again, or use that version."


class Section(BaseModel):
    """A frozen section of params.yaml that refuses unknown keys and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Download(Section):
    """The corpus and its direction. A target that is no language selects another task than translation, `tree` parsing."""

    corpus: Name
    source: Language
    target: Language

    @property
    def task(self) -> Task:
        """The task of the target."""
        return task_of(self.target)


class Clean(Section):
    """Rules that drop training pairs; null or false turns a rule off."""

    max_words: PositiveInt | None
    max_ratio: Annotated[float, Field(ge=1)] | None
    drop_copies: bool
    drop_foreign: bool
    drop_overlap: bool
    drop_duplicates: bool
    drop_case_duplicates: bool
    on_invalid_utf8: Literal["stop", "drop"]
    drop_worst: Probability
    score_by: Pretrained | None


def _check_symbols(symbols: list[str]) -> list[str]:
    """Refuse symbols that SentencePiece cannot hold: it splits at white space first, and its special tokens are reserved."""
    if len(set(symbols)) < len(symbols) or any(not re.fullmatch(r"\S+", symbol) or symbol in _SPECIAL for symbol in symbols):
        raise ValueError("a symbol twice, with white space, or a special token")
    return symbols


def _check_pretrained(name: str) -> str:
    """Refuse a path: a model to start from must be in `PRETRAINED`, where DVC sees it, and not be an output of this pipeline."""
    if not re.fullmatch(r"\w[\w.-]*", name) or name == "None":
        raise ValueError("not the name of a folder")
    return name


def refuse_nested(directory: Path, key: str) -> None:
    """Refuse a folder in `PRETRAINED` with a model and a subfolder with another one: a second `cp -r` has copied into the old folder.

    Raises `UserError` (78): names the setting `key` and both folders.
    """
    if not directory.resolve().is_relative_to(PRETRAINED.resolve()):
        return
    for name in _MODEL_FILES:
        nested = sorted(directory.glob(f"*/{name}"))
        if nested and (directory / name).exists():
            fault = f"{key}: {directory} holds a model, and {nested[0].parent} another"
            raise configuration_error(fault, f"Remove {directory}, then copy again.")


Pretrained = Annotated[str, AfterValidator(_check_pretrained), Field(description=f"the name of a folder in {PRETRAINED}/")]


class Bpe(Section):
    """The joint subword vocabulary of both languages (paper 5.1)."""

    init_from: Pretrained | None
    vocab_size: Annotated[int, Field(gt=16)]
    type: Literal["bpe", "unigram"]
    character_coverage: Annotated[float, Field(ge=0.98, le=1)]
    sample: PositiveInt | None
    seed: NonNegativeInt
    user_symbols: Annotated[
        list[str],
        AfterValidator(_check_symbols),
        Field(description="a list of different texts without white space, none of them a special token"),
    ]
    lowercase: bool


class Binarize(Section):
    """Largest number of tokens of a side; longer training pairs are left out and counted."""

    max_tokens: PositiveInt


class Model(Section):
    """Name of a preset of an architecture; every other key overrides a value of the preset (symbols as in the paper's Table 3).

    transformer_core/presets.py defines the keys of each architecture.
    """

    architecture: Literal["transformer", "recurrent", "convolutional"] = "transformer"
    preset: Name
    layers: PositiveInt | None = None
    encoder_layers: PositiveInt | None = None
    decoder_layers: PositiveInt | None = None
    d_model: PositiveInt | None = None
    d_ff: PositiveInt | None = None
    heads: PositiveInt | None = None
    d_k: PositiveInt | None = None
    d_v: PositiveInt | None = None
    dropout: Probability | None = None
    attention_dropout: Probability | None = None
    relu_dropout: Probability | None = None
    norm: Literal["post", "pre"] | None = None
    positions: Literal["sinusoidal", "learned", "none"] | None = None
    most_positions: PositiveInt | None = None
    tied: Literal["all", "decoder", "none"] | None = None
    neighbourhood: PositiveInt | None = None
    cell: Literal["lstm", "gru"] | None = None
    attention: Literal["none", "additive", "dot"] | None = None
    decoder: Literal["simple", "cho", "bahdanau", "luong"] | None = None
    bidirectional: bool | None = None
    reverse_source: bool | None = None
    kernel: PositiveInt | None = None
    convolutions: Convolutions | None = None


class Train(Section):
    """Updates, batches in tokens, the paper's optimiser and schedule (paper 5.1 to 5.4)."""

    init_from: Pretrained | None
    updates: PositiveInt
    tokens_per_update: PositiveInt
    tokens_per_microbatch: PositiveInt
    learning_rate_factor: PositiveFloat
    warmup: PositiveInt
    cooldown: Share
    adam_beta1: Probability
    adam_beta2: Probability
    adam_epsilon: PositiveFloat
    label_smoothing: Probability
    bpe_dropout: Probability
    r_drop: NonNegativeFloat
    max_skipped: NonNegativeInt
    precision: Precision
    validate_every: PositiveInt
    bleu_sentences: PositiveInt
    best_by: str
    patience: NonNegativeInt
    save_every: PositiveInt
    keep: PositiveInt
    keep_best: NonNegativeInt
    seed: NonNegativeInt

    @property
    def microbatches(self) -> int:
        """Number of micro-batches in a full update; the devices share them."""
        return -(-self.tokens_per_update // self.tokens_per_microbatch)

    @property
    def passes(self) -> int:
        """Number of times that an update computes each of its pairs."""
        return 2 if self.r_drop else 1

    @property
    def without_effect(self) -> set[str]:
        """Settings that change no weights: the end of training, what is kept and what is measured. `updates` only without a cooldown."""
        return {"patience", "keep", "keep_best", "validate_every", "bleu_sentences"} | (set() if self.cooldown else {"updates"})

    @property
    def highest_rate(self) -> float:
        """The highest learning rate of all updates, as a share of the highest of the schedule."""
        falling = round(self.cooldown * self.updates)
        # The rate rises until the cooldown or the warm-up ends; if the warm-up is longer, rise times cooldown is highest half-way at most.
        update = min(max(self.updates - falling, (self.updates + 1) // 2), self.warmup, self.updates)
        return update / self.warmup * min(1.0, (self.updates - update + 1) / (falling + 1))

    @property
    def warning(self) -> str:
        """A line about a warm-up that training or cooldown end well before the highest learning rate; empty if they do not."""
        if self.highest_rate >= _FULL_RATE:
            return ""
        falling = f" with train.cooldown {self.cooldown:g}" if self.cooldown else ""
        reached = f"the learning rate reaches {self.highest_rate:.0%} of its highest value"
        updates = f"{self.warmup:,} updates, but the training has {self.updates:,}{falling}"
        return f"train.warmup: {updates}: {reached}. Lower it, or raise train.updates."


class Average(Section):
    """The model that translates: the mean of checkpoints (paper 6.1), and its shortlist."""

    of: Literal["last", "best"]
    count: PositiveInt
    shortlist: NonNegativeInt


class Decode(Section):
    """Beam search (paper 6.1): at most source length + `max_extra` tokens."""

    engine: Literal["torch", "ctranslate2"]
    precision: DecodingPrecision
    shortlist: bool
    beam: Beam
    penalty: Penalty
    alpha: Alpha
    max_extra: PositiveInt
    batch_tokens: PositiveInt


# The search of models and commands that name no other (paper 6.1).
PAPER_SEARCH = Decode(
    engine="torch", precision="float32", shortlist=False, beam=4, penalty="wu", alpha=0.6, max_extra=50, batch_tokens=4096
)


class Evaluate(Section):
    """Scores and report."""

    allow_tokenised: bool
    examples: PositiveInt


class Publish(Section):
    """Name in the MLflow model registry; the versions of a name are compared with each other."""

    name: ModelName


class Machine(Section):
    """Settings that cannot change a result: they are no DVC parameters and not part of the fingerprint."""

    devices: PositiveInt | None = None
    nodes: PositiveInt | None = None
    threads: PositiveInt | None = None
    workers: PositiveInt | None = None
    mirror: Name | None = None
    pools: dict[str, str] = Field(default_factory=dict)
    limit_hours: PositiveFloat | None = None
    price_per_hour: NonNegativeFloat | None = None
    tracking_uri: Name | None = None

    @property
    def training_nodes(self) -> int:
        """Number of machines that a training uses: `nodes` in a work pool, one elsewhere."""
        return (self.nodes or 1) if "train" in self.pools else 1


# Before the path of a record in an SQLite database.
SQLITE = "sqlite:///"
# MLflow's own default: a database beside params.yaml.
DEFAULT_TRACKING_URI = f"{SQLITE}mlflow.db"


def tracking_uri(machine: Machine) -> str:
    """Return the address of MLflow's record: `machine.tracking_uri`, else $MLFLOW_TRACKING_URI, else mlflow.db.

    The relative path of a database begins at the repository, also in an experiment's temporary copy of it.
    """
    uri = machine.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_TRACKING_URI
    return f"{SQLITE}{repository() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


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


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a params file. Raises `UserError` (78), with a line for each fault that names file and key."""
    params = validate_document(Params, read_yaml(path), path)
    check_across_sections(params, path)
    return params


def read_yaml(path: Path, parse: Callable[[str, str], Any] | None = None) -> Any:
    """Read a YAML 1.2 file (the version that DVC reads, so both read 1e-9 as a number). Raises `UserError` (78).

    `parse` is `parse_yaml` if none is given, or `editable_yaml`.
    """
    try:
        return (parse or parse_yaml)(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, IsADirectoryError):
        # Only params files and dvc.yaml are read without a check that they exist. Any recipe is a params file.
        top = path.name == "dvc.yaml"
        remedy = "Run this at the top of the repository." if top else "Write one with: transformer-core recipe tatoeba"
        raise configuration_error(f"{path}: no such file", remedy) from None
    except UnicodeDecodeError as error:
        raise configuration_error(f"{path}: not valid UTF-8 (byte {error.start})") from None


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text, without any tag; `where` names its place. Raises `UserError` (78)."""
    return _parsed(YAML(typ="safe", pure=True), text, where)


def editable_yaml(text: str, where: str) -> Any:
    """Return the document of a YAML text with its comments, as `parse_yaml`; `yaml_text` writes it."""
    parse_yaml(text, where)  # A round trip would keep tags.
    return _parsed(_round_trip(), text, where)


def _parsed(yaml: YAML, text: str, where: str) -> Any:
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{where}:{mark.line + 1}" if mark else where
        problem = str(error.problem or error.context)
    except RecursionError:
        problem = "nested too deep"
    # ruamel.yaml passes on Python's errors for a day that does not exist, a number of 5,000 digits or a list as a key. For comments that
    # overlap it raises a kind of RuntimeError.
    except (YAMLError, ValueError, TypeError, AttributeError, LookupError, AssertionError, RuntimeError) as error:
        problem = first_line(error)
    problem, remedy = problem.splitlines()[0], ""
    if problem.startswith("found duplicate key"):
        problem, remedy = problem.partition(" with value ")[0], "Remove one of them."  # For a section ruamel.yaml gives the value as "{}".
    elif "'\\t'" in problem:
        remedy = "Indent with spaces."
    raise configuration_error(f"{where}: not valid YAML ({problem})", remedy)


def yaml_text(document: object) -> str:
    """Return a document as YAML, its lines unbroken."""
    text = io.StringIO()
    _round_trip().dump(document, text)
    return text.getvalue()


def _round_trip() -> YAML:
    yaml = YAML()  # The default type, a round trip, keeps comments.
    yaml.width = 1_000  # Keeps lines unbroken.
    yaml.Representer = _Representer
    return yaml


class _Representer(RoundTripRepresenter):
    """Writes text as the base class, but escapes a "next line" (U+0085), which ruamel.yaml writes as it is and reads as a space."""

    def represent_str(self, text: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\x85" in text else None)


_Representer.add_representer(str, _Representer.represent_str)


def validate_document(schema: type[Document], document: object, path: Path) -> Document:
    """Check a document against a schema. Raises `UserError` (78), with a line for each fault that names file and key."""
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        raise combined_error(_faults(schema, error, path)) from None


def check_document(schema: type[Document], document: object, path: Path, remedy: str) -> Document:
    """Check a document that a stage wrote. Raises `UserError` (65): its first fault in one line, with this remedy."""
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        first = _faults(schema, error, path)[0]
        own = not remedy or first.remedy == _OTHER_FORMAT
        raise UserError(first.message, first.remedy if own else remedy) from None


def combined_error(errors: list[UserError]) -> UserError:
    """Return one `UserError` (78) with a line for each of the errors, at most ten."""
    if len(errors) > _FAULTS_SHOWN:
        return configuration_error("\n".join(map(str, errors[:_FAULTS_SHOWN])), "There are more faults.")
    *first, last = errors
    return configuration_error("\n".join([*map(str, first), last.message]), last.remedy)


def _faults(schema: type[BaseModel], error: ValidationError, path: Path) -> list[UserError]:
    """Return the faults, without missing keys that are there misspelt; of a file of another format that alone."""
    faults = error.errors()[:_FAULTS_READ]
    other_format = [fault for fault in faults if fault["loc"] == ("format",)]
    misspelt = {(*fault["loc"][:-1], *_nearest_key(schema, fault)) for fault in faults if fault["type"] in _UNKNOWN_KEY}
    own = [fault for fault in faults if fault["type"] not in _MISSING_KEY or fault["loc"] not in misspelt]
    return [_in_one_line(schema, fault, path) for fault in other_format or own]


def _nearest_key(schema: type[BaseModel], fault: ErrorDetails) -> list[str]:
    """Return the known key that is most similar to an unknown one; none if no key is similar."""
    return difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(schema, fault), n=1)


def _known_keys(schema: type[BaseModel], fault: ErrorDetails) -> list[str]:
    return sorted(_schema_at(schema, fault["loc"][:-1]).get("properties", {}))


def _in_one_line(schema: type[BaseModel], fault: ErrorDetails, path: Path) -> UserError:
    """Return a fault as pydantic describes it; a field's description, if there is one, says what its value must be."""
    key, remedy = ".".join(map(str, fault["loc"])), ""
    if fault["type"] in _UNKNOWN_KEY:
        near = _nearest_key(schema, fault)
        words = "unknown key"
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(_known_keys(schema, fault))}."
    elif fault["type"] in _MISSING_KEY:
        words = "missing"
    elif fault["type"] == "value_error" and not key:  # Of a `model_validator`: a contradiction between keys, which it names.
        words = str(fault["ctx"]["error"])
    else:
        part = _schema_at(schema, fault["loc"])
        if "description" in part and "properties" not in part:
            told = f"must be {part['description']}"
        else:
            told = re.sub(r"^\w+ should ", "must ", fault["msg"].removeprefix("Value error, "))
        words = f"{told}, got {_shown(fault['input'])}"
        remedy = _OTHER_FORMAT if fault["loc"] == ("format",) else ""
    line = f"{path}: {key}: {words}" if key else f"{path}: {words}"
    return configuration_error(line.replace("\n", "\\n"), remedy)  # A key may have a line feed.


def _shown(value: object) -> str:
    """Return the value as Python writes it, shortened: an alias in YAML may stand for billions of values."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 1, 200, 200
    try:
        return shortened.repr(value)
    except ValueError:
        return "a number of very many digits"


@cache
def _json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    return schema.model_json_schema()


def _schema_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> dict[str, Any]:
    """Return the JSON schema of the value at a location, also inside optional values, lists, mappings and tagged unions."""
    root = _json_schema(schema)

    def resolved(part: dict[str, Any]) -> dict[str, Any]:
        part = part.get("anyOf", [part])[0]  # The other alternative of an optional value is null.
        return dict(root["$defs"][part["$ref"].rpartition("/")[2]]) if "$ref" in part else part

    part = resolved(root)
    for step in location:
        inner = part.get("properties", {}).get(step) or part.get("items") or part.get("additionalProperties")
        if "discriminator" in part:
            inner = {"$ref": part["discriminator"]["mapping"][step]}
        part = resolved(inner or {})
    return part


def check_across_sections(params: Params, path: Path = PARAMS_FILE) -> None:
    """Refuse values that are valid alone but contradict each other, before the first stage runs.

    Raises `UserError` (78): one line naming file and key for the first contradiction.
    """
    for key, fault, remedy in _contradictions(params):
        raise configuration_error(f"{path}: {key}: {fault}", remedy)


def _contradictions(params: Params) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the fault and the remedy of each contradiction."""
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
    if train.init_from is not None and params.bpe.init_from is None:
        remedy = "Weights belong to their vocabulary: name the same model in both."
        yield "bpe.init_from", f"missing, train.init_from starts from {train.init_from}", remedy
    if train.bpe_dropout and params.bpe.init_from is None and params.bpe.type != "bpe":
        fault = f"must be 0 where bpe.type is {params.bpe.type}, got {train.bpe_dropout}"
        yield "train.bpe_dropout", fault, "Only BPE has merges to leave out."
    model = params.model
    if train.r_drop and model.dropout == 0 and not (model.attention_dropout or model.relu_dropout):
        remedy = "It compares two passes, which are equal without dropout. Set model.dropout, for example to 0.1."
        yield "train.r_drop", f"must be 0 where the model has no dropout, got {train.r_drop:g}", remedy
    if binarize.max_tokens > min(train.tokens_per_microbatch, train.tokens_per_update):
        fault = (
            f"a pair of {binarize.max_tokens} tokens does not fit the smaller of train.tokens_per_microbatch "
            f"({train.tokens_per_microbatch}) and train.tokens_per_update ({train.tokens_per_update})"
        )
        yield "binarize.max_tokens", fault, "Lower it or raise them."
    if params.bpe.lowercase and download.task.cased_because:
        yield "bpe.lowercase", f"must be false where download.target is {download.target}, got true", download.task.cased_because
    if bool(params.clean.drop_worst) != bool(params.clean.score_by):
        needed = "be 0" if params.clean.drop_worst else "be above 0"
        fault = f"must {needed} where clean.score_by is {params.clean.score_by or 'null'}, got {params.clean.drop_worst:g}"
        yield "clean.drop_worst", fault, "The two models of clean.score_by find the worst pairs."
    if params.decode.shortlist and not average.shortlist:
        yield "decode.shortlist", "must be false where average.shortlist is 0, got true", "Set average.shortlist, for example to 100."
    if params.decode.precision == "int8" and params.decode.engine == "torch":
        yield "decode.precision", "must not be int8 with decode.engine torch", "Set decode.engine: ctranslate2."
    if params.decode.engine == "ctranslate2":
        yield from _not_in_ctranslate2(params)
    if not is_language(download.source):
        yield "download.source", f"must be a language, {download.source} can be the target alone", ""
    if train.best_by not in (*MEASURES, download.task.key):
        fault = f"must be {', '.join(MEASURES)} or {download.task.key}, the score of {download.task.name}, got {train.best_by!r}"
        yield "train.best_by", fault, ""
    if download.source == download.target:
        yield "download.target", f"must differ from download.source, got {download.target!r}", ""


def _not_in_ctranslate2(params: Params) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that CTranslate2 does not support, as `_contradictions`."""
    decode, model, remedy = params.decode, params.model, "Set decode.engine: torch."
    if decode.precision not in get_args(CTranslate2Precision):
        yield "decode.precision", f"must be float32 or int8 with decode.engine ctranslate2, got {decode.precision!r}", ""
    if model.architecture != "transformer":
        yield "model.architecture", f"CTranslate2 has no {model.architecture} model", remedy
    for key, value in model.model_dump(exclude={"preset"} | CTRANSLATE2_KEYS, exclude_none=True).items():
        yield f"model.{key}", f"cannot be converted to CTranslate2, got {value!r}", remedy
