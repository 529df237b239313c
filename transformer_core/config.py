"""The schema of params.yaml: one frozen section a stage, plus `model` (tracked) and `machine` (untracked).

Every key of a stage's section stands in the file, so a params.yaml is the whole truth about a run; only `model` (a preset and
what overrides it) and `machine` (which cannot change a result) have defaults.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from transformer_core.errors import UserError, configuration_error

PARAMS_FILE = Path("params.yaml")
# What stands for a language where the target is phrase-structure trees.
TREES = "tree"

Document = TypeVar("Document", bound=BaseModel)

Precision = Literal["auto", "bf16", "fp16", "float32", "float64"]
DecodingPrecision = Literal[Precision, "int8"]
CTranslate2Precision = Literal["float32", "int8"]
Penalty = Literal["wu", "power"]


@dataclass(frozen=True)
class Expected:
    """What a value must be, in the words of an error message."""

    words: str


PositiveInt = Annotated[int, Field(gt=0), Expected("a whole number above 0")]
NonNegativeInt = Annotated[int, Field(ge=0), Expected("a whole number, 0 or more")]
PositiveFloat = Annotated[float, Field(gt=0), Expected("a number above 0")]
NonNegativeFloat = Annotated[float, Field(ge=0), Expected("a number, 0 or more")]
Probability = Annotated[float, Field(ge=0, lt=1), Expected("a number from 0 to below 1")]
Share = Annotated[float, Field(ge=0, le=1), Expected("a number from 0 to 1")]
Flag = Annotated[bool, Expected("true or false")]
Convolutions = Annotated[
    list[Annotated[list[PositiveInt], Field(min_length=3, max_length=3)]],
    Field(min_length=1),
    Expected("a list of [channels, kernel, layers], each a whole number above 0"),
]
_SPECIAL = frozenset({"<pad>", "<unk>", "<s>", "</s>"})
Name = Annotated[str, Field(min_length=1), Expected("a name")]
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
        """What is learnt: `parsing` where the target is trees."""
        return "parsing" if self.target == TREES else "translation"


class Clean(Section):
    """What makes a training pair unusable; null and false are off.

    Attributes:
        max_words: on a side, between white space.
        max_ratio: of the sides' words.
        drop_copies: pairs whose sides are the same.
        drop_foreign: pairs with a side of which more than half of the letters are of scripts that valid and test do not use.
        drop_overlap: pairs with a side that is also in valid or test, whatever its capitals.
        drop_duplicates: pairs that came before.
        drop_case_duplicates: pairs that came before with other capitals.
    """

    max_words: PositiveInt | None
    max_ratio: Annotated[float, Field(ge=1), Expected("a number, 1 or more")] | None
    drop_copies: Flag
    drop_foreign: Flag
    drop_overlap: Flag
    drop_duplicates: Flag
    drop_case_duplicates: Flag
    on_invalid_utf8: Literal["stop", "drop"]


def _of_their_own(symbols: list[str]) -> list[str]:
    """SentencePiece parts at white space first, and has its special tokens already."""
    if len(set(symbols)) < len(symbols) or any(not re.fullmatch(r"\S+", symbol) or symbol in _SPECIAL for symbol in symbols):
        raise ValueError("a symbol twice, with white space, or a special token")
    return symbols


class Bpe(Section):
    """The joint subword vocabulary of both languages (paper 5.1).

    Attributes:
        init_from: takes that of a model directory instead of learning one.
        vocab_size: token ids, the four special ones and the user's symbols counted.
        type: byte-pair encoding, or SentencePiece's unigram model.
        character_coverage: the share of the text's letters that get an id; those of the rest are unk.
        sample: learns from so many training pairs, drawn at random; null is all of them.
        seed: of that draw.
        user_symbols: texts that are one token wherever they stand.
    """

    init_from: Name | None
    vocab_size: Annotated[int, Field(gt=16), Expected("a whole number above 16")]
    type: Literal["bpe", "unigram"]
    character_coverage: Annotated[float, Field(gt=0, le=1), Expected("a number above 0, at most 1")]
    sample: PositiveInt | None
    seed: NonNegativeInt
    user_symbols: Annotated[
        list[str], AfterValidator(_of_their_own), Expected("a list of different texts without white space, none of them a special token")
    ]


class Binarize(Section):
    """Training pairs with more tokens than this on a side are left out and counted."""

    max_tokens: PositiveInt


class Model(Section):
    """A preset of an architecture by name; every other key overrides the preset's value (symbols as in the paper's Table 3).

    Which keys an architecture has, and what they mean, stands in transformer_core/presets.py.
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
    bidirectional: Flag | None = None
    reverse_source: Flag | None = None
    kernel: PositiveInt | None = None
    convolutions: Convolutions | None = None


class Train(Section):
    """Updates, batches in tokens, the paper's optimiser and schedule (paper 5.1 to 5.4).

    Attributes:
        init_from: a model directory to start from; None starts from random weights.
        updates: at most.
        tokens_per_update: most source tokens, and most target tokens, of a global batch, padding left out; before `bpe_dropout`.
        tokens_per_microbatch: most rows times longest side of a micro-batch, padding counted: it is what memory sees.
        learning_rate_factor: factor of the paper's formula for the rate (5.3, eq. 3); 1.0 is the paper.
        cooldown: share of the updates, the last ones, over which the rate falls linearly to zero; 0 is the paper.
        bpe_dropout: probability with which each merge of BPE is left out, anew whenever a pair is trained on; 0 is the paper.
        max_skipped: updates in a row whose loss or gradient is not finite; after one more the weights go back to the last state, once.
        precision: of the matrix products; `auto` is the fastest that the device has.
        validate_every: updates; a multiple of `save_every`, so that each validated model is also saved.
        bleu_sentences: of valid, spread over it, that a validation translates for BLEU, or parses for F1 (greedily: it is not the score of
            `evaluate`).
        best_by: the validation's measure by which checkpoints are kept and patience is counted.
        patience: validations without a better one after which training ends; 0 trains all updates.
        keep: checkpoints of the last saves that are kept.
        keep_best: checkpoints of the best validations that are kept besides.
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
        """Micro-batches of a full update: what devices share out among them."""
        return -(-self.tokens_per_update // self.tokens_per_microbatch)


class Average(Section):
    """How many checkpoints are averaged (paper 6.1), the last or the best (see train.best_by); 1 takes one as it is."""

    of: Literal["last", "best"]
    count: PositiveInt


class Decode(Section):
    """Beam search (paper 6.1): at most source length + `max_extra` tokens.

    Attributes:
        engine: ours in PyTorch, or CTranslate2, which holds the Transformer alone.
        precision: of weights and matrix products; `auto` is bf16, fp16 or float32 as the device has them, `int8` is for CPUs. CTranslate2
            has float32 and int8.
        penalty: of a length |Y|: `wu` is the paper's ((5+|Y|)/6)^alpha (Wu et al. 2016), `power` is |Y|^alpha, all that CTranslate2 has.
    """

    engine: Literal["torch", "ctranslate2"]
    precision: DecodingPrecision
    beam: PositiveInt
    penalty: Penalty
    alpha: NonNegativeFloat
    max_extra: PositiveInt
    batch_tokens: PositiveInt


class Evaluate(Section):
    """What is scored, and what the report shows besides the scores.

    Args:
        allow_tokenised: score against references that look tokenised; the score is then no BLEU that others have.
        examples: sentences that the report shows.
    """

    allow_tokenised: Flag
    examples: PositiveInt


class Publish(Section):
    """The name in the MLflow model registry; versions under it are compared with each other."""

    name: Name


class Machine(Section):
    """What cannot change a result: never a DVC parameter, in no fingerprint.

    Attributes:
        devices: processes that train together on a machine, a GPU each where there are GPUs; None takes what the machine has.
        nodes: machines of the pool of stage train that train together; None is one.
        threads: of each of these processes on a CPU; None shares the cores.
        pools: the Prefect work pool that runs a stage; a stage without one runs where the flow runs.
        limit_hours: after which a stage is told to save and end, to be tried again; None is no limit.
        price_per_hour: of one machine, in whatever currency: for the table of costs.
    """

    devices: PositiveInt | None = None
    nodes: PositiveInt | None = None
    threads: PositiveInt | None = None
    workers: PositiveInt | None = None
    mirror: Name | None = None
    pools: Annotated[dict[str, str], Expected("a work pool's name for each stage")] = Field(default_factory=dict)
    limit_hours: PositiveFloat | None = None
    price_per_hour: NonNegativeFloat | None = None
    tracking_uri: Name | None = None


# MLflow's own default: a database beside params.yaml.
DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"


def tracking_uri(machine: Machine) -> str:
    """Where MLflow keeps its record: `machine.tracking_uri`, else $MLFLOW_TRACKING_URI, else mlflow.db in the repository."""
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
    """Read and check a params file.

    Raises:
        UserError: exit code 78; one line naming file and key for the first thing that is wrong.
    """
    params = validate_document(Params, read_yaml(path), path)
    check_across_sections(params, path)
    return params


def read_yaml(path: Path) -> Any:
    """The document in a YAML 1.2 file (the dialect DVC reads, so 1e-9 is a number for both)."""
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
    key = ".".join(str(part) for part in location)
    prefix = f"{path}: {key}" if key else str(path)
    if error["type"] in ("missing", "missing_argument"):
        return configuration_error(f"{prefix}: missing, must be {_expectation(schema, location, error)}")
    if error["type"] == "unexpected_keyword_argument":  # Of a dataclass, whose fields are not the schema's.
        return configuration_error(f"{prefix}: unknown key")
    if error["type"] == "extra_forbidden":
        known = sorted(_section_at(schema, location[:-1]).model_fields)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        return configuration_error(f"{prefix}: unknown key", f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}.")
    return configuration_error(f"{prefix}: must be {_expectation(schema, location, error)}, got {error['input']!r}")


def _section_at(schema: type[BaseModel], location: list[str | int]) -> type[BaseModel]:
    """The section that a location leads to or through, also inside optional values, lists and mappings."""
    section, annotation = schema, cast(object, schema)
    for part in location:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
        else:
            annotation = next(reversed(get_args(annotation)), None)
        while type(None) in get_args(annotation) or get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    return section


def _expectation(schema: type[BaseModel], location: list[str | int], error: ErrorDetails) -> str:
    if not location:
        return "a document with the keys " + ", ".join(schema.model_fields)
    parents = location[:-1]
    names = [part for part in location if isinstance(part, str)]
    section = _section_at(schema, list(parents))
    field = next((section.model_fields[name] for name in reversed(names) if name in section.model_fields), None)
    if field is not None:
        words = next((item.words for item in (*field.metadata, *_annotations(field.annotation)) if isinstance(item, Expected)), None)
        if words is not None:
            return words
        choices = next((part for part in (field.annotation, *get_args(field.annotation)) if get_origin(part) is Literal), None)
        if choices is not None:
            return "one of " + ", ".join(str(choice) for choice in get_args(choices))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            return "a section with the keys " + ", ".join(field.annotation.model_fields)
    if error["type"] in ("literal_error", "union_tag_invalid"):
        context = error["ctx"]
        return f"one of {context.get('expected') or context['expected_tags']}".replace("'", "").replace(" or ", ", ")
    return next((words for begin, words in _KINDS.items() if error["type"].startswith(begin)), "given")


# What pydantic's types of errors begin with, and what the value should have been.
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "dict": "a section",
    "model": "a section",
    "dataclass": "a section",
    "union_tag_not_found": "a section that names its architecture",
}


def _annotations(annotation: object) -> list[object]:
    """What stands beside the types inside an optional annotated type."""
    found: list[object] = []
    for part in get_args(annotation):
        found.extend(getattr(part, "__metadata__", ()))
    return found


def check_across_sections(params: Params, path: Path = PARAMS_FILE) -> None:
    """Refuse what is right key by key and wrong together, before the first stage has cost anything."""
    train, average, binarize = params.train, params.average, params.binarize
    if train.validate_every % train.save_every:
        raise configuration_error(
            f"{path}: train.validate_every: must be a multiple of train.save_every ({train.save_every}), got {train.validate_every}"
        )
    key, kept, every = ("keep", train.keep, "save_every") if average.of == "last" else ("keep_best", train.keep_best, "validate_every")
    if average.count > kept:
        raise configuration_error(
            f"{path}: average.count: must be at most train.{key} ({kept}), got {average.count}", "Keep more checkpoints or average fewer."
        )
    if (train.updates - 1) // getattr(train, every) + 1 < average.count:
        raise configuration_error(
            f"{path}: train.{every}: {train.updates} updates in steps of {getattr(train, every)} give fewer checkpoints than average.count "
            f"({average.count}) takes",
            "Save more often or average fewer.",
        )
    if train.init_from is not None and params.bpe.init_from is None:
        raise configuration_error(
            f"{path}: bpe.init_from: missing, train.init_from starts from {train.init_from}",
            "Weights belong to their vocabulary: name the same model directory in both.",
        )
    if train.bpe_dropout and params.bpe.init_from is None and params.bpe.type != "bpe":
        raise configuration_error(
            f"{path}: train.bpe_dropout: must be 0 where bpe.type is {params.bpe.type}, got {train.bpe_dropout}",
            "Only BPE has merges to leave out.",
        )
    if binarize.max_tokens > min(train.tokens_per_microbatch, train.tokens_per_update):
        raise configuration_error(
            f"{path}: binarize.max_tokens: a pair of {binarize.max_tokens} tokens does not fit the smaller of train.tokens_per_microbatch "
            f"({train.tokens_per_microbatch}) and train.tokens_per_update ({train.tokens_per_update})",
            "Lower it or raise them.",
        )
    if params.decode.engine == "ctranslate2":
        _check_ctranslate2(params, path)
    _check_label_smoothing(params, path)
    _check_task(params, path)
    if params.download.source == params.download.target:
        raise configuration_error(f"{path}: download.target: must differ from download.source, got {params.download.target!r}")


def _check_task(params: Params, path: Path) -> None:
    """Refuse trees as a source, and a measure that the task does not have."""
    if params.download.source == TREES:
        raise configuration_error(f"{path}: download.source: must be a language, trees can be the target alone, got {TREES!r}")
    other = "f1" if params.download.task == "translation" else "bleu"
    if params.train.best_by == other:
        raise configuration_error(
            f"{path}: train.best_by: the task is {params.download.task} (download.target {params.download.target}), which has no {other}",
            "Set perplexity, or " + ("bleu." if other == "f1" else "f1."),
        )


def _check_label_smoothing(params: Params, path: Path) -> None:
    """Refuse a row of Table 3 that varies label smoothing with another value of it: a preset sets sizes, and no key of train."""
    preset = params.model.preset
    value = _SMOOTHING_ROW.fullmatch(preset)
    if value is not None and params.train.label_smoothing != float(value[1]):
        raise configuration_error(
            f"{path}: train.label_smoothing: must be {value[1]} with model.preset {preset}, got {params.train.label_smoothing}",
            f"A preset sets no key of train; the recipe of the row does: transformer-core recipe {preset}",
        )


def _check_ctranslate2(params: Params, path: Path) -> None:
    remedy = "Set decode.engine: torch."
    if params.decode.penalty != "power":
        raise configuration_error(
            f"{path}: decode.penalty: must be power with decode.engine ctranslate2, which has no other, got {params.decode.penalty!r}"
        )
    if params.decode.precision not in get_args(CTranslate2Precision):
        raise configuration_error(
            f"{path}: decode.precision: must be float32 or int8 with decode.engine ctranslate2, got {params.decode.precision!r}"
        )
    if params.model.architecture != "transformer":
        raise configuration_error(f"{path}: model.architecture: CTranslate2 has no {params.model.architecture} model", remedy)
    if params.model.neighbourhood is not None:
        raise configuration_error(f"{path}: model.neighbourhood: CTranslate2 has no attention over a neighbourhood", remedy)
