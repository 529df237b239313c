"""The pipeline around the work: stages for DVC, the Prefect flow, the MLflow record."""
