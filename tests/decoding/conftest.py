"""A model that has learnt something to search for, trained once (some seconds)."""

import pytest

from tests.decoding.parity import WordsOnly, learnt


@pytest.fixture(scope="session")
def model() -> WordsOnly:
    """Shared: a test that changes it takes a copy."""
    return learnt(updates=100)
