"""The schema of params.yaml: a frozen section for each stage, plus `model` (tracked) and `machine` (untracked).

Every key of a stage's section is in the file, so a params.yaml is the whole truth about a run; only `model` (a preset and what overrides
it) and `machine` (which cannot change a result) have defaults.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from transformer_core.errors import UserError, configuration_error

PARAMS_FILE = Path("params.yaml")
# Takes the place of a language where the target is phrase-structure trees.
TREES = "tree"

Document = TypeVar("Document", bound=BaseModel)

# An error message derives what a value must be from the type and its bounds. A description says it where these do not.
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, description="a name")]
Convolutions = Annotated[
    list[Annotated[list[PositiveInt], Field(min_length=3, max_length=3)]],
    Field(min_length=1, description="a list of [channels, kernel, layers], each a whole number above 0"),
]
Precision = Literal["auto", "bf16", "fp16", "float32", "float64"]
DecodingPrecision = Literal[Precision, "int8"]
CTranslate2Precision = Literal["float32", "int8"]
Penalty = Literal["wu", "power"]
_SPECIAL = frozenset({"<pad>", "<unk>", "<s>", "</s>"})
# The name holds the row's value, which presets.py has too; this module cannot import it.
_SMOOTHING_ROW = re.compile(r"table3/D-smoothing(\d\.\d)")


class Section(BaseModel):
    """A frozen section of params.yaml that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Download(Section):
    """Which corpus, in which direction; the target `tree` is the task of constituency parsing (paper 6.3, docs/parsing.md)."""

    corpus: Name
    source: Name
    target: Name

    @property
    def task(self) -> Literal["translation", "parsing"]:
        """The task: `parsing` if the target is trees."""
        return "parsing" if self.target == TREES else "translation"


class Clean(Section):
    """The rules that drop training pairs; null and false are off.

    Attributes:
        max_words: bound of the words of a side.
        max_ratio: bound of the ratio of the sides' words.
        drop_copies: pairs with equal sides.
        drop_foreign: pairs with a side that has more than half of its letters from scripts that valid and test do not use.
        drop_overlap: pairs with a side that is also in valid or test, ignoring case.
        drop_duplicates: repeated pairs.
        drop_case_duplicates: repeated pairs, ignoring case.
    """

    max_words: PositiveInt | None
    max_ratio: Annotated[float, Field(ge=1)] | None
    drop_copies: bool
    drop_foreign: bool
    drop_overlap: bool
    drop_duplicates: bool
    drop_case_duplicates: bool
    on_invalid_utf8: Literal["stop", "drop"]


def _check_symbols(symbols: list[str]) -> list[str]:
    """Refuse symbols that SentencePiece cannot have: it splits at white space first, and has its special tokens already."""
    if len(set(symbols)) < len(symbols) or any(not re.fullmatch(r"\S+", symbol) or symbol in _SPECIAL for symbol in symbols):
        raise ValueError("a symbol twice, with white space, or a special token")
    return symbols


class Bpe(Section):
    """The joint subword vocabulary of both languages (paper 5.1).

    Attributes:
        init_from: a model directory whose vocabulary is used instead of learning one.
        vocab_size: number of token ids, with the four special ones and the user's symbols.
        type: byte-pair encoding, or SentencePiece's unigram model.
        character_coverage: share of the text's characters that get an id; the rest are unk.
        sample: number of training pairs to learn from, drawn at random; null is all of them.
        seed: of that draw.
        user_symbols: texts that are always one token.
    """

    init_from: Name | None
    vocab_size: Annotated[int, Field(gt=16)]
    type: Literal["bpe", "unigram"]
    character_coverage: Annotated[float, Field(gt=0, le=1)]
    sample: PositiveInt | None
    seed: NonNegativeInt
    user_symbols: Annotated[
        list[str],
        AfterValidator(_check_symbols),
        Field(description="a list of different texts without white space, none of them a special token"),
    ]


class Binarize(Section):
    """The bound of the tokens of a side; longer training pairs are left out and counted."""

    max_tokens: PositiveInt


class Model(Section):
    """A preset of an architecture by name; every other key overrides the preset's value (symbols as in the paper's Table 3).

    transformer_core/presets.py defines the keys of each architecture.
    """

    architecture: Literal["transformer", "recurrent", "convolutional"] = "transformer"
    preset: Name
    layers: PositiveInt | None = None
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
    """Updates, batches in tokens, the paper's optimiser and schedule (paper 5.1 to 5.4).

    Attributes:
        init_from: a model directory to start from; None starts from random weights.
        updates: bound of the number of updates.
        tokens_per_update: bound of the source tokens, and of the target tokens, of a global batch, without padding; before `bpe_dropout`.
        tokens_per_microbatch: bound of rows times longest side of a micro-batch, padding included: it determines the memory.
        learning_rate_factor: factor of the paper's formula for the rate (5.3, eq. 3); 1.0 is the paper.
        cooldown: share of the updates, at the end, over which the rate falls linearly to zero; 0 is the paper.
        bpe_dropout: probability of leaving out each BPE merge, drawn again whenever a pair is trained on; 0 is the paper.
        max_skipped: updates in a row with a loss or gradient that is not finite; after one more the last state is restored, once.
        precision: of matrix products; `auto` is the fastest of the device.
        validate_every: updates; a multiple of `save_every`, so that each validated model is also saved.
        bleu_sentences: number of sentences of valid, spread over it, that a validation translates greedily for BLEU, or parses for F1 (not
            the score of `evaluate`).
        best_by: measure of a validation that decides which checkpoints are kept, and about patience.
        patience: number of validations without a better one after which training ends; 0 trains all updates.
        keep: number of checkpoints kept of the last saves.
        keep_best: number of checkpoints kept of the best validations, in addition.
    """

    init_from: Name | None
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
    max_skipped: NonNegativeInt
    precision: Precision
    validate_every: PositiveInt
    bleu_sentences: PositiveInt
    best_by: Literal["nll", "perplexity", "accuracy", "bleu", "f1"]
    patience: NonNegativeInt
    save_every: PositiveInt
    keep: PositiveInt
    keep_best: NonNegativeInt
    seed: NonNegativeInt

    @property
    def microbatches(self) -> int:
        """Number of micro-batches of a full update, which the devices share."""
        return -(-self.tokens_per_update // self.tokens_per_microbatch)


class Average(Section):
    """The number of checkpoints to average (paper 6.1), the last or the best (see train.best_by); 1 does not average."""

    of: Literal["last", "best"]
    count: PositiveInt


class Decode(Section):
    """Beam search (paper 6.1): at most source length + `max_extra` tokens.

    Attributes:
        engine: ours in PyTorch, or CTranslate2, which has the Transformer alone.
        precision: of weights and matrix products; `auto` is bf16, fp16 or float32 depending on the device, `int8` is for CPUs. CTranslate2
            has float32 and int8.
        penalty: of a length |Y|: `wu` is the paper's ((5+|Y|)/6)^alpha (Wu et al. 2016), `power` is |Y|^alpha, the only one of CTranslate2.
    """

    engine: Literal["torch", "ctranslate2"]
    precision: DecodingPrecision
    beam: PositiveInt
    penalty: Penalty
    alpha: NonNegativeFloat
    max_extra: PositiveInt
    batch_tokens: PositiveInt


class Evaluate(Section):
    """Scores and report.

    Attributes:
        allow_tokenised: score against references that look tokenised; such a BLEU is not comparable.
        examples: number of sentences in the report.
    """

    allow_tokenised: bool
    examples: PositiveInt


class Publish(Section):
    """The name in the MLflow model registry; versions under it are compared with each other."""

    name: Name


class Machine(Section):
    """Settings that cannot change a result: never a DVC parameter, in no fingerprint.

    Attributes:
        devices: number of processes that train together on a machine, one for each GPU if there are any; None is as many as it has.
        nodes: number of machines in the pool of stage train that train together; None is one.
        threads: of each of these processes on a CPU; None shares the cores.
        pools: the Prefect work pool of each stage; a stage without one runs where the flow runs.
        limit_hours: time after which a stage must save and end, to be tried again; None is no limit.
        price_per_hour: of one machine, in any currency, for the table of costs.
    """

    devices: PositiveInt | None = None
    nodes: PositiveInt | None = None
    threads: PositiveInt | None = None
    workers: PositiveInt | None = None
    mirror: Name | None = None
    pools: Annotated[dict[str, str], Field(description="a work pool's name for each stage")] = Field(default_factory=dict)
    limit_hours: PositiveFloat | None = None
    price_per_hour: NonNegativeFloat | None = None
    tracking_uri: Name | None = None


# MLflow's own default: a database beside params.yaml.
DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"


def tracking_uri(machine: Machine) -> str:
    """Return the address of MLflow's record: `machine.tracking_uri`, else $MLFLOW_TRACKING_URI, else mlflow.db in the repository."""
    return machine.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_TRACKING_URI


class Params(Section):
    """The whole of params.yaml."""

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
    """Read and check a params file. Raises `UserError` (78): one line naming file and key for the first fault."""
    params = validate_document(Params, read_yaml(path), path)
    check_across_sections(params, path)
    return params


def read_yaml(path: Path) -> Any:
    """Read a YAML 1.2 file (the dialect of DVC, so 1e-9 is a number for both)."""
    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise configuration_error(f"{path}: no such file", "Write one with: transformer-core recipe synthetic") from None
    except UnicodeDecodeError as error:
        raise configuration_error(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = str(error.problem or error.context).splitlines()[0]
        raise configuration_error(f"{where}: not valid YAML ({problem})") from None


def validate_document(schema: type[Document], document: object, path: Path) -> Document:
    """Check a document against a schema; the first fault becomes a one-line `UserError` that names file and key."""
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        # A misspelt key is two faults, unknown and missing; the unknown one says more.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        raise _in_one_line(schema, faults[0], path) from None


def _in_one_line(schema: type[BaseModel], error: ErrorDetails, path: Path) -> UserError:
    location = [part for part in error["loc"] if isinstance(part, (str, int))]
    where = f"{path}: {'.'.join(map(str, location))}" if location else str(path)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = sorted(_schema_at(schema, location[:-1]).get("properties", {}))
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        return configuration_error(f"{where}: unknown key", f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}.")
    expected = _in_words(_schema_at(schema, location))
    if error["type"] in ("missing", "missing_argument"):
        return configuration_error(f"{where}: missing, must be {expected}")
    if not location:
        expected = expected.replace("section", "document")
    return configuration_error(f"{where}: must be {expected}, got {error['input']!r}")


def _schema_at(schema: type[BaseModel], location: list[str | int]) -> dict[str, Any]:
    """Return the JSON schema of the value at a location, also inside optional values, lists, mappings and unions with a tag."""
    root = schema.model_json_schema()

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


def _in_words(part: dict[str, Any]) -> str:
    """Return what a value must be by its JSON schema, for example "a whole number above 0"."""
    if choices := part.get("enum") or part.get("discriminator", {}).get("mapping"):
        return "one of " + ", ".join(map(str, choices))
    if "const" in part:
        return str(part["const"])
    if "properties" in part:
        return "a section with the keys " + ", ".join(part["properties"])
    if "description" in part:
        return str(part["description"])
    names = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text", "array": "a list"}
    bounds = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "and at most", "exclusiveMaximum": "and below"}
    words = [names.get(part.get("type", ""), "a section"), *(f"{word} {part[key]:g}" for key, word in bounds.items() if key in part)]
    return " ".join(words)


def check_across_sections(params: Params, path: Path = PARAMS_FILE) -> None:
    """Refuse keys that are valid one by one and invalid together, before the first stage has cost anything.

    Raises:
        UserError: exit code 78; one line naming file and key for the first contradiction.
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
        fault = f"{train.updates} updates in steps of {steps} give fewer checkpoints than average.count ({average.count}) takes"
        yield f"train.{every}", fault, "Save more often or average fewer."
    if train.init_from is not None and params.bpe.init_from is None:
        remedy = "Weights belong to their vocabulary: name the same model directory in both."
        yield "bpe.init_from", f"missing, train.init_from starts from {train.init_from}", remedy
    if train.bpe_dropout and params.bpe.init_from is None and params.bpe.type != "bpe":
        fault = f"must be 0 where bpe.type is {params.bpe.type}, got {train.bpe_dropout}"
        yield "train.bpe_dropout", fault, "Only BPE has merges to leave out."
    if binarize.max_tokens > min(train.tokens_per_microbatch, train.tokens_per_update):
        fault = (
            f"a pair of {binarize.max_tokens} tokens does not fit the smaller of train.tokens_per_microbatch "
            f"({train.tokens_per_microbatch}) and train.tokens_per_update ({train.tokens_per_update})"
        )
        yield "binarize.max_tokens", fault, "Lower it or raise them."
    if params.decode.engine == "ctranslate2":
        yield from _not_in_ctranslate2(params)
    preset = params.model.preset
    row = _SMOOTHING_ROW.fullmatch(preset)  # A preset sets sizes, and no key of train.
    if row is not None and train.label_smoothing != float(row[1]):
        remedy = f"A preset sets no key of train; the recipe of the row does: transformer-core recipe {preset}"
        yield "train.label_smoothing", f"must be {row[1]} with model.preset {preset}, got {train.label_smoothing}", remedy
    if download.source == TREES:
        yield "download.source", f"must be a language, trees can be the target alone, got {TREES!r}", ""
    measure, instead = ("f1", "bleu") if download.task == "translation" else ("bleu", "f1")
    if train.best_by == measure:
        fault = f"the task is {download.task} (download.target {download.target}), which has no {measure}"
        yield "train.best_by", fault, f"Set perplexity, or {instead}."
    if download.source == download.target:
        yield "download.target", f"must differ from download.source, got {download.target!r}", ""


def _not_in_ctranslate2(params: Params) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that CTranslate2 does not have."""
    decode, model, remedy = params.decode, params.model, "Set decode.engine: torch."
    if decode.penalty != "power":
        yield "decode.penalty", f"must be power with decode.engine ctranslate2, which has no other, got {decode.penalty!r}", ""
    if decode.precision not in get_args(CTranslate2Precision):
        yield "decode.precision", f"must be float32 or int8 with decode.engine ctranslate2, got {decode.precision!r}", ""
    if model.architecture != "transformer":
        yield "model.architecture", f"CTranslate2 has no {model.architecture} model", remedy
    if model.neighbourhood is not None:
        yield "model.neighbourhood", "CTranslate2 has no attention over a neighbourhood", remedy
