"""The record: the journal of each run, its sender to MLflow, the model registry, and the origin of a run."""
