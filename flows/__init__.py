"""The pipeline around transformer_core: stages for DVC, the Prefect flow, the MLflow record."""
