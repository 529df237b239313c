import pickle

import pytest

from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, first_line, without_logins


def test_an_error_reads_as_one_line_of_fault_and_remedy() -> None:
    assert str(UserError("a.txt:3: not valid UTF-8", "Re-encode it.")) == "a.txt:3: not valid UTF-8. Re-encode it."
    assert str(UserError("It failed.", "Try again.")) == "It failed. Try again."
    assert str(UserError("a.txt: no such file")) == "a.txt: no such file"


def test_exit_codes_are_those_of_sysexits() -> None:
    codes = {"DONE": 0, "BAD_DATA": 65, "UNAVAILABLE": 69, "INTERRUPTED": 75, "BAD_CONFIGURATION": 78}
    assert {code.name: code.value for code in ExitCode} == codes
    assert UserError("x").exit_code == ExitCode.BAD_DATA
    assert configuration_error("x").exit_code == ExitCode.BAD_CONFIGURATION


def test_a_request_to_stop_is_caught_by_no_handler_of_failures() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:secret@host:5000/path", "http://host:5000/path"),
        ("https://token@host", "https://host"),
        ("http://me:s@cret@host", "http://host"),
        ("postgresql+psycopg://me:se/cret@host/mlflow", "postgresql+psycopg://host/mlflow"),
        ("http://a:b@host and http://c:d@other", "http://host and http://other"),
        ("ssh://git@host/repository", "ssh://git@host/repository"),
        ("http://127.0.0.1:5000/#/models/name@champion", "http://127.0.0.1:5000/#/models/name@champion"),
        ("models:/name@champion, sqlite:///folder/mlflow.db", "models:/name@champion, sqlite:///folder/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_its_login(address: str, shown: str) -> None:
    assert without_logins(address) == shown
    assert first_line(OSError(f"{address} is away\nmore")) == f"{shown} is away"
    error = UserError(f"{address} is away", f"Start {address}")
    assert str(error) == f"{shown} is away. Start {shown}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "secret" not in repr(error)
