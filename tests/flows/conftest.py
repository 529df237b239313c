"""Fixtures of several files: a model directory, and a client of an empty MLflow record."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.record.server import connect


@pytest.fixture
def client(mlflow_store: str) -> MlflowClient:
    return connect(mlflow_store)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights; a test that changes it takes a copy."""
    from tests.flows.publishing import random_model

    return random_model(tmp_path_factory.mktemp("model"))
