"""The record: the journal of each run, what sends it to MLflow, the model registry, and what a run came from."""
