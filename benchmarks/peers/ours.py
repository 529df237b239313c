"""This project's trainer, one process a rank: ``python -m peers.ours FOLDER``, under torchrun if there are several ranks."""

from peers.job import read_job, train_and_report
from transformer_core import recipes
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.models.architectures import build
from transformer_core.models.precision import low_precision, precision_name, weights_dtype
from transformer_core.training.devices import process_group
from transformer_core.training.records import Observer, Progress
from transformer_core.training.throughput import NullDirectory
from transformer_core.training.trainer import Trainer
from transformer_core.training.update import seed_everything


def main() -> None:
    """Train for warm-up, train again with the clock running, report; kernels and graphs are made once."""
    folder, job = read_job()
    changes = {
        "updates": len(job.updates),
        "tokens_per_update": job.setting.tokens_per_update,
        "tokens_per_microbatch": job.setting.tokens_per_update // job.microbatches,
        "seed": job.seed,
        "precision": "auto",
        "validate_every": len(job.updates),
        "save_every": len(job.updates),
    }
    settings = recipes.load("wmt14-en-de-base").train.model_copy(update=changes)
    with process_group(job.threads) as rank:
        seed_everything(job.seed, 0, 0)
        model = build(job.setting.size, job.setting.vocab_size).to(rank.device, weights_dtype("auto"))
        scores = {settings.best_by: 0.0}
        trainer = Trainer(model, open_split(folder / "train"), settings, rank, NullDirectory(), Observer(), lambda: scores, lambda: False)

        def train() -> int:
            trainer.progress = Progress()
            trainer.run()
            rank.wait_for_all()
            return trainer.progress.target_tokens

        precision = precision_name(low_precision(rank.device, "auto") or weights_dtype("auto"))
        train_and_report(folder, model, train, precision, rank.device, rank.index)


if __name__ == "__main__":
    main()
