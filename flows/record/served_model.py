"""The model as MLflow serves it. MLflow stores this file with the weights, and runs it when the model is loaded (models from code)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import Field

from transformer_core.config import MOST_EXTRA, Alpha, Beam, EngineOption, Penalty
from transformer_core.corpus.tokens.shortlist import SHORTLIST
from transformer_core.decoding.beam import Search
from transformer_core.decoding.glossary import glossary_of
from transformer_core.decoding.library import LoadedModel, Options
from transformer_core.decoding.translator import BATCH_TOKENS
from transformer_core.errors import ExitCode, UserError, is_out_of_memory, machine_errors
from transformer_core.models.directory import CONFIG, read_config
from transformer_core.schema import Section, validate_document

Scored = dict[str, str | float]
Answer = str | Scored | list[Scored]

# Some pages of text, which are translated in some seconds.
MOST_CHARACTERS = 20_000
_USUAL_BEAM = Search.beam
# The beginnings of errors in what a request asks for: its target language, glossary, and an engine that lacks something.
_OF_REQUEST = ("to: ", "engine ", "glossary:", "max_extra:")


class RequestParams(Section, strict=False):
    """The `params` of a request."""

    beam: Beam = _USUAL_BEAM
    alpha: Alpha = Search.alpha
    penalty: Penalty = Search.penalty
    max_extra: int = Field(Search.max_extra, ge=1, le=MOST_EXTRA)
    engine: EngineOption = "auto"  # See `choose_engine`.
    shortlist: bool = False  # Whether the search is among the subwords on a line's shortlist.
    nbest: bool = False  # Whether to return the `beam` best translations instead of the best one.
    scores: bool = False  # Whether to return each translation with its score and log-probability.
    to: str = ""  # Target language; empty for a model of one direction.
    glossary: str = ""  # Wanted translations: lines of a term, a tab and its translation.


class Refused(MlflowException):
    """An error in a request: status 400 and one line. Without `serialize_as_json`, MLflow would repeat the whole request before it."""

    def __init__(self, line: str, code: int = INVALID_PARAMETER_VALUE) -> None:
        super().__init__(line, code)
        self._line = line

    def serialize_as_json(self) -> str:
        """The body of the answer."""
        return json.dumps({"error_code": self.error_code, "message": self._line})


class ServedTranslator(PythonModel):
    """A translator of lines. The server runs requests in parallel threads, which share the model."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the model directory that was published as the artifact "model"."""
        self.directory = Path(context.artifacts["model"])
        config = read_config(self.directory / CONFIG)
        own, fields = config.decode, {*RequestParams.model_fields}
        self.usual = own.model_dump(include=fields) | {"max_extra": min(own.max_extra, MOST_EXTRA)} if own else {}
        self.model = LoadedModel([self.directory], config, replicas=False)

    def predict(self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None) -> Sequence[Answer]:  # noqa: ARG002
        """Return the best translation of each line, with `scores` as {"text", "score", "log_probability"}; with `nbest` a list of these.

        A line has at most `MOST_CHARACTERS`; a long one is translated in parts, see `LineReader`. `params` has fields of `RequestParams`;
        those left out are the model's own (`ModelConfig.decode`).

        Raises `Refused`: a line is too long or no text, a parameter is invalid, or the engine asked for does not work here; status 503 if
        memory ran out, 500 if no engine was asked for.
        """
        try:
            asked = validate_document(RequestParams, self.usual | (params or {}), Path("params"))
        except UserError as error:
            raise Refused(str(error).replace("params: ", "params.").replace("\n", "; ")) from None
        lines = [_checked(number, line) for number, line in enumerate(model_input)]
        if asked.shortlist and not (self.directory / SHORTLIST).is_file():
            raise Refused("params.shortlist: this model was published without one.")
        options = Options(beam=asked.beam, alpha=asked.alpha, penalty=asked.penalty, max_extra=asked.max_extra, to=asked.to)
        # A wider beam gets smaller batches, so that it takes no more memory.
        options["batch_tokens"] = BATCH_TOKENS * _USUAL_BEAM // max(asked.beam, _USUAL_BEAM)
        # The model's own engine gives way to a glossary.
        engine = None if asked.engine == self.usual.get("engine") else asked.engine
        model = replace(self.model, engine=engine, shortlist=asked.shortlist)
        try:
            if asked.glossary:
                options["glossary"] = glossary_of(asked.glossary.removesuffix("\n").split("\n"), "glossary")
            with machine_errors("this server", "Send shorter lines, fewer at a time, or a smaller params.beam."):
                if not (asked.nbest or asked.scores):
                    return model.translate(lines, **options)
                found = model.hypotheses(lines, asked.beam if asked.nbest else 1, **options)
        except UserError as error:
            if str(error).startswith(_OF_REQUEST):
                raise Refused(f"params.{error}") from None
            if error.__context__ and is_out_of_memory(error.__context__):  # There may be enough later.
                raise Refused(str(error), TEMPORARILY_UNAVAILABLE) from None
            own = (params or {}).get("engine", "auto") == "auto" or error.exit_code == ExitCode.UNAVAILABLE  # A GPU has failed.
            raise Refused(str(error), INTERNAL_ERROR if own else INVALID_PARAMETER_VALUE) from None
        scored: list[list[Scored]] = [
            [{"text": one.text, "score": one.score, "log_probability": one.log_probability} for one in ranked] for ranked in found
        ]
        return scored if asked.nbest else [best for best, *_ in scored]


def _checked(number: int, line: str) -> str:
    if len(line) > MOST_CHARACTERS:
        raise Refused(f"inputs[{number}]: {len(line):,} characters, at most {MOST_CHARACTERS:,} are translated. Send its parts.")
    try:
        line.encode()
    except UnicodeEncodeError as error:  # JSON can write half of a pair.
        raise Refused(f"inputs[{number}]: character {error.start + 1} is a lone surrogate, which is no text.") from None
    return line


set_model(ServedTranslator())
