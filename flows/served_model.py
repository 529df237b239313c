"""The model as MLflow serves it: this file is stored beside the weights and run where the model is loaded (models-from-code)."""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator


class ServedTranslator(PythonModel):
    """Lines of the source language in, lines of the target language out."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the model directory that was published as the artifact "model"."""
        self.translator = Translator.load(Path(context.artifacts["model"]))

    def predict(self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None) -> list[str]:  # noqa: ARG002
        """The best translation of each line.

        Args:
            context: MLflow's; what is needed of it has been read.
            model_input: lines of the source language.
            params: `beam` and `alpha`, of the types and with the defaults of the signature.
        """
        return [hypotheses[0].text for hypotheses in self.translator.translate(model_input, Search(**(params or {})))]


set_model(ServedTranslator())
