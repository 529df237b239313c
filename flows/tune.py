"""`python -m flows.tune X@champion NAME FILE [FILE]`: write the settings that train a model of the registry further."""

from collections.abc import Sequence

from flows.process.runner import reports_errors
from flows.translate import run_with_model


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the model and run `transformer-core data tune` with the arguments given; return its exit code."""
    return run_with_model("flows.tune", "Write settings for fine-tuning", ["data", "tune"], "--from", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
