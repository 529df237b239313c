"""Datasets of Hugging Face's hub, saved as Parquet, which `data new` reads like files of one's own. Needs `datasets`."""

import logging
from pathlib import Path

from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.files import new_directory

# The hub's names of the splits.
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}


def saved_splits(name: str, folder: Path) -> dict[str, list[Path]]:
    """Fetch a dataset, OWNER/NAME or OWNER/NAME/CONFIGURATION, and return the file in `folder` of each split: train, valid, test.

    Raises `UserError`: 78; `datasets` is not installed, or there is no such dataset, configuration or split train. 69; the hub is away.
    """
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
        from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]
    except ImportError:
        raise configuration_error(f"hf:{name}: datasets is not installed", "Install it with: pip install datasets") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # It would name each of five tries.
    owner, *rest = name.split("/", 2)
    try:
        dataset = load_dataset("/".join([owner, *rest[:1]]), *rest[1:])
    except ConnectionError as error:
        raise UserError(f"hf:{name}: {first_line(error)}", "Run this where the hub can be reached.", ExitCode.UNAVAILABLE) from None
    except (ValueError, RuntimeError, DatasetsError) as error:
        raise configuration_error(f"hf:{name}: {' '.join(str(error).split())}") from None
    if "train" not in dataset:
        raise configuration_error(f"hf:{name}: no split train", f"It has {', '.join(dataset)}.")
    splits = {ours: dataset[theirs] for theirs, ours in _SPLITS.items() if theirs in dataset}
    with new_directory(folder) as new:
        for split, rows in splits.items():
            rows.to_parquet(new / f"{split}.parquet")
    return {split: [folder / f"{split}.parquet"] for split in splits}
