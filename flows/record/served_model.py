"""The model as MLflow serves it. MLflow stores this file with the weights, and runs it when the model is loaded (models from code)."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel, ConfigDict, Field

from transformer_core.config import MOST_EXTRA, Alpha, Beam, CTranslate2Precision, DecodingPrecision, Penalty
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.engine import DecodingRequest, Engine, EngineOption, SourceChunk, choose_engine, translated
from transformer_core.decoding.lines import LineReader, most_tokens, to_language
from transformer_core.decoding.translator import BATCH_TOKENS, Hypothesis, Translator, load_for_decoding
from transformer_core.errors import ExitCode, UserError, is_out_of_memory, machine_errors
from transformer_core.models.directory import CONFIG, read_config
from transformer_core.schema import validate_document

Scored = dict[str, str | float]
Answer = str | Scored | list[Scored]

# Some pages of text, which are translated in some seconds.
MOST_CHARACTERS = 20_000
_USUAL_BEAM = Search.beam
_log = logging.getLogger(__name__)


class RequestParams(BaseModel):
    """The `params` of a request.

    Attributes:
        engine: see `choose`.
        shortlist: whether the search is among the subwords on a line's shortlist.
        nbest: whether to return the `beam` best translations instead of the best one.
        scores: whether to return each translation with its score and log-probability.
        to: target language; empty for a model of one direction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    beam: Beam = _USUAL_BEAM
    alpha: Alpha = Search.alpha
    penalty: Penalty = Search.penalty
    max_extra: int = Field(Search.max_extra, ge=1, le=MOST_EXTRA)
    engine: EngineOption = "auto"
    shortlist: bool = False
    nbest: bool = False
    scores: bool = False
    to: str = ""


class Refused(MlflowException):
    """An error in a request: status 400 and one line. Without `serialize_as_json`, MLflow would repeat the whole request before it."""

    def __init__(self, line: str, code: int = INVALID_PARAMETER_VALUE) -> None:
        super().__init__(line, code)
        self._line = line

    def serialize_as_json(self) -> str:
        """The body of the answer."""
        return json.dumps({"error_code": self.error_code, "message": self._line})


class ServedTranslator(PythonModel):
    """A translator of lines. The server runs requests in parallel threads, so after `load_context` only `_ctranslate2` changes, once."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the model directory that was published as the artifact "model"."""
        self.directory = Path(context.artifacts["model"])
        self.config = read_config(self.directory / CONFIG)
        search = self.config.decode
        self.usual = {} if search is None else search.model_dump(include={*RequestParams.model_fields})
        if search is not None:
            self.usual["max_extra"] = min(search.max_extra, MOST_EXTRA)
        self.precision: DecodingPrecision = "float32" if search is None else search.precision
        # Not Translator.load, which takes all GPUs.
        self.translator = Translator(*load_for_decoding(self.directory, "float32" if self.precision == "int8" else self.precision))
        file = self.directory / SHORTLIST
        self.shortlist = Shortlist.load(file, self.translator.subword.vocab_size) if file.is_file() else None
        self._loading = Lock()
        self._ctranslate2: dict[bool, CTranslate2Engine] = {}

    def predict(self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None) -> Sequence[Answer]:  # noqa: ARG002
        """Return the best translation of each line, with `scores` as {"text", "score", "log_probability"}; with `nbest` a list of these.

        Args:
            context: MLflow's context, not used.
            model_input: lines of the source language, of at most `MOST_CHARACTERS`; a long one is translated in parts, see `LineReader`.
            params: the fields of `RequestParams`; those left out are the model's own (`ModelConfig.decode`).

        Raises:
            Refused: a line is too long or no text, a parameter is invalid, or the engine asked for does not work here; status 503 if memory
                ran out, 500 if no engine was asked for.
        """
        asked = _asked(self.usual | (params or {}))
        subword = self.translator.subword
        try:
            marked = to_language(self.config, subword, asked.to, "params.to")
        except UserError as error:
            raise Refused(str(error)) from None
        reader = LineReader(subword, self.config.source, most_tokens(self.config, self.translator.most_positions), marked)
        lines = [reader.read(_checked(number, line)) for number, line in enumerate(model_input)]
        for note in reader.notes():
            _log.warning(note)
        # A wider beam gets smaller batches, so that it takes no more memory.
        batch_tokens = BATCH_TOKENS * _USUAL_BEAM // max(asked.beam, _USUAL_BEAM)
        nbest = asked.beam if asked.nbest else 1
        search = Search(asked.beam, asked.alpha, asked.penalty, max_extra=asked.max_extra, nbest=nbest)
        scored = asked.nbest or asked.scores
        wanted = DecodingRequest([self.directory], search, self.precision, scored=scored, shortlist=asked.shortlist)
        try:
            with machine_errors("this server", "Send shorter lines, fewer at a time, or a smaller params.beam."):
                chunk = SourceChunk([part for line in lines for part in line.parts])
                (results,) = translated(self._engine(asked.engine, wanted), [chunk], wanted, batch_tokens, ahead=0)
        except UserError as error:
            if error.__context__ and is_out_of_memory(error.__context__):  # There may be enough later.
                raise Refused(str(error), TEMPORARILY_UNAVAILABLE) from None
            own = asked.engine == "auto" or error.exit_code == ExitCode.UNAVAILABLE  # The server's fault: a GPU that has failed.
            raise Refused(str(error), INTERNAL_ERROR if own else INVALID_PARAMETER_VALUE) from None
        parts = iter(results)
        found = [line.joined([*islice(parts, len(line.parts))]) for line in lines]
        if asked.nbest:
            return [[_scored(hypothesis) for hypothesis in ranked] for ranked in found]
        return [_scored(ranked[0]) if asked.scores else ranked[0].text for ranked in found]

    def _engine(self, asked: EngineOption, wanted: DecodingRequest) -> Engine:
        """Return the engine for a request; CTranslate2 is loaded for the first that it can serve, because it doubles the memory."""
        if wanted.shortlist and self.shortlist is None:
            raise Refused("params.shortlist: this model was published without one.")
        try:
            choice = choose_engine(asked, wanted)
        except UserError as error:
            raise Refused(f"params.{error}") from None
        if choice.engine == "torch":
            # The same for all requests: on a GPU it keeps the memory of captured steps. With a shortlist none are captured.
            return replace(self.translator, shortlist=self.shortlist) if wanted.shortlist else self.translator
        with self._loading:
            if not self._ctranslate2:
                precision: CTranslate2Precision = "int8" if self.precision == "int8" else "float32"
                engine = CTranslate2Engine.load(self.directory, torch.get_num_threads(), precision)
                self._ctranslate2 = {shortlist: replace(engine, shortlist=shortlist) for shortlist in (False, True)}
        return self._ctranslate2[wanted.shortlist]


def _checked(number: int, line: str) -> str:
    if len(line) > MOST_CHARACTERS:
        raise Refused(f"inputs[{number}]: {len(line):,} characters, at most {MOST_CHARACTERS:,} are translated. Send its parts.")
    try:
        line.encode()
    except UnicodeEncodeError as error:  # JSON can write half of a pair.
        raise Refused(f"inputs[{number}]: character {error.start + 1} is a lone surrogate, which is no text.") from None
    return line


def _asked(params: dict[str, Any]) -> RequestParams:
    try:
        return validate_document(RequestParams, params, Path("params"))
    except UserError as error:
        raise Refused(str(error).replace("params: ", "params.").replace("\n", "; ")) from None


def _scored(hypothesis: Hypothesis) -> Scored:
    return {"text": hypothesis.text, "score": hypothesis.score, "log_probability": hypothesis.log_probability}


set_model(ServedTranslator())
