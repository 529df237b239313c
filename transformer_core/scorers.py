"""Commands for external.py: `OTHER/bin/python transformer_core/scorers.py KIND MODEL`; the model is one of the hub, or of this machine.

KIND is comet, where the environment OTHER has unbabel-comet, or labse, where it has sentence-transformers. This file imports nothing of the
project, whose pins these packages do not fit.
"""

import json
import os
import sys
from typing import Any

Batch = list[dict[str, str]]


def comet(name: str) -> Any:
    """COMET; without references a model of its QE kind."""
    from comet import download_model, load_from_checkpoint  # type: ignore[import-not-found]

    model = load_from_checkpoint(name if os.path.exists(name) else download_model(name))
    keys = {"source": "src", "translation": "mt", "reference": "ref"}
    settings = {"gpus": 0, "num_workers": 0, "progress_bar": False}
    return lambda batch: model.predict([{keys[key]: texts[key] for key in texts} for texts in batch], **settings).scores


def labse(name: str) -> Any:
    """Cosine of a pair's sentence embeddings."""
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model = SentenceTransformer(name)

    def scores(batch: Batch) -> list[float]:
        sides = ([texts[key] for texts in batch] for key in ("source", "translation"))
        sources, targets = (model.encode(side, normalize_embeddings=True) for side in sides)
        return [float(cosine) for cosine in (sources * targets).sum(1)]

    return scores


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the packages print is no answer.
    scores = {"comet": comet, "labse": labse}[sys.argv[1]](sys.argv[2])
    batch: list[dict[str, str]] = []
    for line in sys.stdin:
        if line.strip():
            batch.append(json.loads(line))
        else:
            print(*scores(batch), sep="\n", file=answers, flush=True)
            batch = []
