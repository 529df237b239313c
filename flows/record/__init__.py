"""The record: what is kept of each run, its sender to MLflow, the model registry, and the origin of a run."""
