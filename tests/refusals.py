"""Errors that a user can correct, as tests expect them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from transformer_core.errors import UserError


@contextmanager
def refused(code: int, line: str | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a `UserError` with this exit code from the block; `line` is a regular expression for a part of its text."""
    with pytest.raises(UserError, match=line) as caught:
        yield caught
    assert caught.value.exit_code == code
