import pytest

from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error


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
    ("quoted", "shown"),
    [
        ("a\x1b[31mb\x00\u2028\udcff", r"a\x1b[31mb\x00\u2028\udcff"),
        ("Süßes 日本 ✓", "Süßes 日本 ✓"),
        ("https://me:s3cret@host:8080/a?b, http://t0ken@x", "https://host:8080/a?b, http://x"),
        ("a@b.c http://x/y@z", "a@b.c http://x/y@z"),
        ("x" * 5_000, "x" * 1_000 + "..." + "x" * 1_000),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_a_message_holds_nothing_that_a_terminal_obeys_and_no_password(quoted: str, shown: str) -> None:
    error = UserError(quoted, quoted)
    assert (error.message, error.remedy) == (shown, shown)
