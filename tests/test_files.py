import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

import pytest

from tests.refusals import refused
from transformer_core.errors import UserError
from transformer_core.files import is_locked, locked, new_directory, new_file, read_json, read_numbers, write_text

STREAMS = """import os, sys
from transformer_core.files import prepare_streams
prepare_streams()
print("a note", file=sys.stderr, flush=True)
print(sys.stdin.read(), os.fsdecode(b"\\xff"), "\\u00e9", flush=True)"""


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [("<&-", b" %s", b"a note\n"), (">&-", b"", b"a note\n"), ("2>&-", b"typed %s", b""), ("<&- >&- 2>&-", b"", b"")],
)
def test_closed_standard_streams_are_empty_and_standard_output_takes_any_text(closed: str, out: bytes, err: bytes) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, STREAMS]
    done = subprocess.run(command, input=b"typed", capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, out.replace(b"%s", b"\xff \xc3\xa9\n"), err)


# Writes the file `made` and is killed, or waits to be told to end.
WRITING = """
import os, signal, sys
from pathlib import Path
from transformer_core.files import new_file

os.getpid = lambda: 2**30
with new_file(Path("made")) as temporary:
    temporary.write_text(sys.argv[1])
    print(temporary, flush=True)
    if sys.argv[1] == "killed":
        signal.raise_signal(signal.SIGKILL)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    """The other one writes in another container: there it has the id of a process that has ended here, or the same as this one."""
    subprocess.run([sys.executable, "-c", WRITING, "killed"], cwd=tmp_path, check=False)
    (left,) = tmp_path.iterdir()
    command = [sys.executable, "-c", WRITING, "whole"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        writing = other.stdout.readline().strip()
        assert not left.exists()
        write_text(tmp_path / "made", "mine")
        assert {path.name for path in tmp_path.iterdir()} == {writing, "made"}
        other.communicate()
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["whole"]


def test_a_lock_is_taken_though_another_process_looks_whether_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    path.touch()
    with path.open("rb") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)  # As `is_locked` of the other process does, which then ends while this one waits.
        monkeypatch.setattr("time.sleep", lambda _: probe.close())
        with locked(path, "this training"):
            assert is_locked(path)
            with refused(69, f"this training is running in process {os.getpid()} on {gethostname()}"), locked(path, "this training"):
                pass
    assert not is_locked(path)


def test_a_new_file_or_directory_appears_whole_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    file, folder = tmp_path / "deep/file.txt", tmp_path / "deep/folder"
    (folder / "sub").mkdir(parents=True)
    with new_file(file) as temporary, new_directory(folder) as other:
        temporary.write_text("text", encoding="utf-8")
        (other / "new").touch()
        assert list(file.parent.glob("[!.]*/*")) == [folder / "sub"]
        assert not file.exists()
    assert file.read_text(encoding="utf-8") == "text"
    assert sorted(file.parent.rglob("*")) == [file, folder, folder / "new"]


def test_a_failure_leaves_the_old_file_or_directory_and_nothing_else(tmp_path: Path) -> None:
    file, folder = tmp_path / "file.txt", tmp_path / "folder"
    file.write_text("old", encoding="utf-8")
    (folder / "sub").mkdir(parents=True)

    def fail() -> None:
        with new_file(file) as temporary, new_directory(folder) as other:
            temporary.write_text("half", encoding="utf-8")
            (other / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert file.read_text(encoding="utf-8") == "old"
    assert list(folder.iterdir()) == [folder / "sub"]
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_an_error_names_the_path_that_was_asked_for_and_not_the_temporary_one(tmp_path: Path) -> None:
    """A name to which the temporary one adds too much: the system refuses it to root, too, unlike a folder without permission."""
    path = tmp_path / ("x" * 250)
    with pytest.raises(OSError, match="File name too long") as caught:
        write_text(path, "text")
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="File name too long") as caught, new_directory(path):
        pass
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as missing, new_directory(tmp_path / "made") as folder:
        (folder / "sub/file").touch()
    assert missing.value.filename == str(tmp_path / "made/sub/file")


@pytest.mark.parametrize("left", [".made.old", "made"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, left: str, there: bool) -> None:
    """As the directory itself, and as what a killed process has set aside; the link may lead nowhere."""
    elsewhere = tmp_path / "elsewhere"
    if there:
        elsewhere.mkdir()
        (elsewhere / "old").touch()
    (tmp_path / left).symlink_to(elsewhere)
    for _ in range(2):
        with new_directory(tmp_path / "made") as folder:
            (folder / "new").touch()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]
    assert not (tmp_path / "made").is_symlink()
    assert elsewhere.exists() == there
    assert {path.name for path in tmp_path.iterdir()} - {"elsewhere"} == {"made"}


# Replaces the folder `made` and kills itself at the step of which the argument is the number.
REPLACED = """
import os, shutil, signal, sys
from pathlib import Path
from transformer_core.files import new_directory
left = int(sys.argv[1])

def killing(step):
    def run(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **named)
    return run

with new_directory(Path("made")) as folder:
    (folder / "new").touch()
    Path.replace, shutil.rmtree = killing(Path.replace), killing(shutil.rmtree)
"""


@pytest.mark.parametrize(("step", "kept"), [(1, "old"), (2, "old"), (3, "new")])
def test_a_kill_while_a_directory_is_replaced_loses_neither(tmp_path: Path, step: int, kept: str) -> None:
    made, of_another = tmp_path / "made", tmp_path / ".other.1.new"
    made.mkdir()
    of_another.mkdir()
    (made / "old").touch()
    killed = subprocess.run([sys.executable, "-c", REPLACED, str(step)], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(KeyboardInterrupt), new_directory(made):
        raise KeyboardInterrupt
    assert [path.name for path in made.iterdir()] == [kept]
    assert sorted(tmp_path.iterdir()) == [of_another, made]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:  # Of a Lustre folder that is mounted without -o flock.
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    said = r"lock: this file system does not lock files \(flock: Function not implemented\)"
    with refused(78, said), locked(tmp_path / "lock", "this training"):
        pass


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff", b"[" * 100_000, b"1" * 5_000, rb'["\ud800"]'])
def test_damaged_json_is_told_with_file_and_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json: not valid JSON \(.+\)\. Make it again\.$"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("damage", [b"2\n", b"2,3,4\n", b"2,\n", b"2,x\n", b"2,\xff\n", b"2,\x00\n"])
def test_a_table_of_numbers_is_read_by_column_and_a_damaged_row_is_told_with_its_file(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "a.csv").write_text("update,loss\n1,2.5\n2,inf\n", encoding="utf-8")
    assert read_numbers(tmp_path / "a.csv") == [{"update": 1.0, "loss": 2.5}, {"update": 2.0, "loss": float("inf")}]
    (tmp_path / "a.csv").write_bytes(b"update,loss\n1,2.5\n" + damage)
    with pytest.raises(UserError, match=r"a\.csv: not a table of numbers .* Restore it with: dvc checkout --force .*a\.csv"):
        read_numbers(tmp_path / "a.csv")


def test_a_lock_whose_file_its_holder_has_removed_is_that_of_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state" / "lock"

    def end(_: float) -> None:  # While the other one waits.
        path.unlink(missing_ok=True)
        holder.close()

    with ExitStack() as holder:
        holder.enter_context(locked(path, "this training"))
        monkeypatch.setattr("time.sleep", end)
        with locked(path, "this training"):
            assert is_locked(path)


def test_a_lock_is_shared_with_the_group_of_its_folder(tmp_path: Path) -> None:
    for mode in (0o755, 0o775):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with locked(folder / "lock", "stage train"):
            assert (folder / "lock").stat().st_mode & 0o020 == mode & 0o020


def test_a_lock_of_another_user_is_named() -> None:
    with TemporaryDirectory() as name, ExitStack() as undo:  # tmp_path is readable by its owner alone.
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "lock").touch()
        (folder / "lock").chmod(0)
        if os.geteuid() == 0:  # Root may write any file; nobody may not.
            os.seteuid(65534)
            undo.callback(os.seteuid, 0)
        with refused(78, "lock: a lock that you may not write"), locked(folder / "lock", "stage train"):
            pass
