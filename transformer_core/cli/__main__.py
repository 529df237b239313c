"""`python -m transformer_core.cli`: the command `transformer-core` where the package is not installed."""

from transformer_core.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
