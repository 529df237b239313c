"""Write the files of today's formats, and what they give, to `tests/upgrade/files`.

python -m tests.upgrade.make

Run it only when a format changes on purpose. Files of the old format then stay where the new code can still read them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from flows.process.runner import report_exit
from flows.record.run import RUN_FILE, RunRecord, Score
from tests.corpus.encoded import write_binarized
from tests.models import on_disk
from tests.models.on_disk import TEXT, VOCAB, write_model
from tests.training.test_trainer import SETTINGS, trainer_of, weights
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Hypothesis, Translator, load_for_decoding
from transformer_core.errors import Interrupted
from transformer_core.files import write_json
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training.records import Observer

FILES = Path(__file__).with_name("files")
SIZE = TransformerSize(layers=1, d_model=16, d_ff=16, heads=2, d_k=8, d_v=8, dropout=0.0)
SEARCH = Search(beam=2, max_extra=8)
STOPPED, ENDED = 10, 12
CHANGES = {"updates": ENDED, "tokens_per_update": 30, "tokens_per_microbatch": 30, "cooldown": 0.0, "validate_every": 10}
TRAIN = SETTINGS.model_copy(update=CHANGES)
RECORD = RunRecord(
    id="9f1c00112233", status="KILLED", start_ms=1_700_000_000_000, end_ms=1_700_000_009_000, score="bleu",
    parameters={"train.warmup": "400"}, tags={"fingerprint": "f00d"},
    metrics={"bleu": Score(value=31.5, step=0)}, artifacts={"evaluation/report.html": "8d"},
)  # fmt: skip
EXIT = (75, "training stopped after update 10, state saved", "Run it again to go on.")


class Counter(Observer):
    """An observer with a state."""

    restored: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        return {"bytes": {"updates.csv": 123}}

    def restore(self, state: dict[str, Any]) -> None:
        self.restored = state


def translations(directory: Path) -> list[list[Hypothesis]]:
    """Translate the lines of `TEXT` with a model directory."""
    return on_disk.translations(Translator(*load_for_decoding(directory)), TEXT, SEARCH)


def logits(directory: Path) -> list[list[float]]:
    """Return the logits of a model directory for a fixed pair, (T, V)."""
    model, _ = load_model(directory)
    source, target = torch.tensor([[5, 9, 17, 3]]), torch.tensor([[2, 8, 30]])
    with torch.no_grad():
        found: list[list[float]] = model.project(model(source, source > 0, target)).view(3, -1).tolist()
    return found


def trained(directory: Path, binarized: Path, observer: Observer, stop_after: int = 10**6) -> list[float]:
    """Train from the state in a directory, or else from the start, and return every 50th weight."""
    torch.manual_seed(7)
    model = Transformer(SIZE, VOCAB)
    trainer = trainer_of(model, open_split(binarized / "train"), directory, TRAIN, observer, stop_after)  # type: ignore[arg-type]
    trainer.resume()
    try:
        trainer.run()
    except Interrupted:
        assert trainer.progress.update == stop_after
    return [round(value, 6) for value in weights(model)[::50].tolist()]


def main() -> None:
    """Write all files anew."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    torch.manual_seed(6)
    model, binarized, state = write_model(Transformer(SIZE, VOCAB), FILES / "model"), FILES / "binarized", FILES / "training"
    (FILES / SUBWORD).unlink()
    subword = Subword.load(model / SUBWORD)
    sentences = subword.encode_clean(TEXT)
    write_binarized(binarized, sentences, sentences[::-1], subword)
    trained(state, binarized, Counter(), STOPPED)
    ranked, kept = translations(model), ("text", "score", "log_probability", "tokens")
    recorded = [[{name: getattr(one, name) for name in kept} for one in row] for row in ranked]
    write_lines(FILES / "decode/test.hyp", (best.text for best, *_ in ranked))
    write_lines(FILES / "decode/test.nbest.jsonl", (json.dumps(row, ensure_ascii=False) for row in recorded))
    write_json(FILES / "scores.json", {"best_by": "nll", "scores": {10: 3.25, 20: 2.5, 30: float("nan")}})
    report_exit(FILES / "state/exit/train.json", *EXIT)
    record = FILES / "state/record" / RECORD.id
    write_json(record / RUN_FILE, RECORD.model_dump())
    write_lines(record / "updates.csv", ["update,loss,seconds", "100,3.25,2.5"])
    continued = FILES / "continued"
    shutil.copytree(state, continued)
    expected = {"translations": recorded, "logits": logits(model), "weights": trained(continued, binarized, Counter()), "tokens": sentences}
    write_json(FILES / "expected.json", expected)
    shutil.rmtree(continued)


if __name__ == "__main__":
    main()
