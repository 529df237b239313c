"""A small learnt metric, as a command for evaluate.comet: `python embedding_metric.py CHECKPOINT [SECONDS]`.

The score is the cosine of the mean embeddings of a translation's words and of those of its reference, or else of its source.
"""

import json
import sys
import time
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import EmbeddingBag

ROWS, DIMENSIONS = 512, 16


def write_checkpoint(path: Path) -> str:
    """Write a checkpoint with random weights, and return the command that scores with it."""
    torch.manual_seed(1)
    torch.save(EmbeddingBag(ROWS, DIMENSIONS).state_dict(), path)
    return f"{sys.executable} {Path(__file__)} {path}"


def main(checkpoint: str, seconds: str = "0") -> None:
    bag = EmbeddingBag(ROWS, DIMENSIONS)
    bag.load_state_dict(torch.load(checkpoint, weights_only=True))

    def embedded(text: str) -> Tensor:
        return bag(torch.tensor([[crc32(word.encode()) % ROWS for word in text.split() or ["-"]]]))

    batch = []
    for line in sys.stdin:
        if line.strip():
            batch.append(json.loads(line))
            continue
        time.sleep(float(seconds))
        for texts in batch:
            other = texts.get("reference", texts["source"])
            print(torch.cosine_similarity(embedded(texts["translation"]), embedded(other)).item())
        sys.stdout.flush()
        batch = []


if __name__ == "__main__":
    main(*sys.argv[1:])
