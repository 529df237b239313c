"""Commands for external.py: `OTHER/bin/python transformer_core/scorers.py KIND MODEL`, in an environment OTHER that has unbabel-comet (KIND is
comet) or sentence-transformers (labse). The model is one of Hugging Face's hub, or a checkpoint or folder of this machine.

This file imports nothing of the project, whose pins these packages do not fit.
"""

import json
import os
import sys
from collections.abc import Callable

Scores = Callable[[list[dict[str, str]]], list[float]]


def comet(name: str) -> Scores:
    """COMET; without references a model of its QE kind."""
    from comet import download_model, load_from_checkpoint  # type: ignore[import-not-found]

    model = load_from_checkpoint(name if os.path.exists(name) else download_model(name))
    keys = {"source": "src", "translation": "mt", "reference": "ref"}

    def scores(batch: list[dict[str, str]]) -> list[float]:
        named = [{keys[key]: text for key, text in texts.items()} for texts in batch]
        return list(model.predict(named, batch_size=16, gpus=0, num_workers=0, progress_bar=False).scores)

    return scores


def labse(name: str) -> Scores:
    """Cosine of a pair's sentence embeddings, such as those of sentence-transformers/LaBSE."""
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model = SentenceTransformer(name)

    def scores(batch: list[dict[str, str]]) -> list[float]:
        sides = ([texts[key] for texts in batch] for key in ("source", "translation"))
        sources, targets = (model.encode(side, normalize_embeddings=True) for side in sides)
        return [float(cosine) for cosine in (sources * targets).sum(1)]

    return scores


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the packages print is no answer.
    scores_of = {"comet": comet, "labse": labse}[sys.argv[1]](sys.argv[2])
    batch: list[dict[str, str]] = []
    for line in sys.stdin:
        if line.strip():
            batch.append(json.loads(line))
        else:
            print(*scores_of(batch), sep="\n", file=answers, flush=True)
            batch = []
