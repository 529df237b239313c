"""The model as MLflow serves it. MLflow stores this file with the weights, and runs it when the model is loaded (models from code)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from transformer_core.config import Penalty
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import BATCH_TOKENS, Hypothesis, Translator, load_for_decoding

Scored = dict[str, str | float]
Answer = str | Scored | list[Scored]

MOST_TOKENS = 1024
# More than 1,024 tokens of any language have, and few enough to be tokenised without delay.
MOST_CHARACTERS = 20_000
MOST_BEAMS = 100
_USUAL_BEAM = Search.beam


class Asked(BaseModel):
    """The `params` of a request.

    Attributes:
        nbest: whether to return the `beam` best translations instead of the best one.
        scores: whether to return each translation with its score and log-probability.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    beam: int = Field(_USUAL_BEAM, ge=1, le=MOST_BEAMS)
    alpha: float = Field(Search.alpha, ge=0, le=10)
    penalty: Penalty = Search.penalty
    max_extra: int = Field(Search.max_extra, ge=1, le=MOST_TOKENS)
    nbest: bool = False
    scores: bool = False


class Refused(MlflowException):
    """An error in a request: status 400 and one line. Without `serialize_as_json`, MLflow would repeat the whole request before it."""

    def __init__(self, line: str) -> None:
        super().__init__(line, INVALID_PARAMETER_VALUE)
        self._line = line

    def serialize_as_json(self) -> str:
        """The body of the answer."""
        return json.dumps({"error_code": self.error_code, "message": self._line})


class ServedTranslator(PythonModel):
    """A translator of lines. The server runs requests in parallel threads, so no attribute changes after `load_context`."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the model directory that was published as the artifact "model"."""
        # Not Translator.load, which decodes several batches in parallel: here parallel requests use the cores.
        self.translator = Translator(*load_for_decoding(Path(context.artifacts["model"])))

    def predict(self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None) -> Sequence[Answer]:  # noqa: ARG002
        """Return the best translation of each line, with `scores` as {"text", "score", "log_probability"}; with `nbest` a list of these.

        Args:
            context: MLflow's context, not used.
            model_input: lines of the source language, of at most `MOST_TOKENS` tokens.
            params: the fields of `Asked`.

        Raises:
            Refused: a line is too long, or a parameter is invalid.
        """
        asked = _asked(params or {})
        tokens = [self._tokens(number, line) for number, line in enumerate(model_input)]
        # A wider beam gets smaller batches, so that it takes no more memory.
        batch_tokens = BATCH_TOKENS * _USUAL_BEAM // max(asked.beam, _USUAL_BEAM)
        nbest = asked.beam if asked.nbest else 1
        search = Search(asked.beam, asked.alpha, asked.penalty, max_extra=asked.max_extra, nbest=nbest)
        found = self.translator.translate_tokens(tokens, search, batch_tokens)
        if asked.nbest:
            return [[_scored(one) for one in ranked] for ranked in found]
        return [_scored(ranked[0]) if asked.scores else ranked[0].text for ranked in found]

    def _tokens(self, number: int, line: str) -> list[int]:
        if len(line) > MOST_CHARACTERS:
            raise _too_long(number, len(line), "characters", MOST_CHARACTERS)
        tokens = self.translator.subword.encode(line)
        learned = self.translator.model.most_positions
        most = MOST_TOKENS if learned is None else min(MOST_TOKENS, learned - 1)
        if len(tokens) - 1 > most:
            raise _too_long(number, len(tokens) - 1, "tokens", most)
        return tokens


def _asked(params: dict[str, Any]) -> Asked:
    try:
        return Asked(**params)
    except ValidationError as error:
        fault = error.errors()[0]
        raise Refused(f"params.{fault['loc'][0]}: {fault['msg']}, got {fault['input']!r}") from error


def _too_long(number: int, count: int, unit: str, most: int) -> Refused:
    return Refused(f"inputs[{number}]: {count:,} {unit}, at most {most:,} are translated. Split it into sentences.")


def _scored(one: Hypothesis) -> Scored:
    return {"text": one.text, "score": one.score, "log_probability": one.log_probability}


set_model(ServedTranslator())
