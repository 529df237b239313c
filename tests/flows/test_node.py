"""A node clones a repository, which not everybody may read, and mends a clone that a kill has left."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from flows.process.repro import NOT_CACHED

from flows.cluster import node
from flows.cluster.node import StageRun, check_out, exchange
from flows.process.child import StageLog
from flows.process.runner import StageError
from tests.clone import git
from tests.refusals import refused
from tests.serving import Private, serving
from transformer_core.errors import UserError

TOKEN = "secret-token"
SSH_ADDRESS = "git@git.example:team/project.git"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """The host and port that serve a repository, team/project.git, with one commit, to whoever sends the token as a password."""
    work, bare = tmp_path / "work", tmp_path / "served/team/project.git"
    git("init", "-q", work)
    git("commit", "-q", "--allow-empty", "-m", "a", at=work)
    git("clone", "-q", "--bare", work, bare)
    git("update-server-info", at=bare)
    with serving(partial(Private, tmp_path / "served", f"x-access-token:{TOKEN}")) as address:
        yield address


@pytest.fixture
def work(tmp_path: Path, host: str) -> StageRun:
    """The stage train at the commit, of the repository as the remote of a person with an ssh key names it."""
    assert host
    return StageRun("train", SSH_ADDRESS, git("rev-parse", "HEAD", at=tmp_path / "work"))


def use_token(monkeypatch: pytest.MonkeyPatch, host: str, token: str) -> None:
    """As docs/cluster.md says it."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.http://x-access-token:{token}@{host}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "git@git.example:")


def test_a_token_in_the_environment_opens_a_private_repository(
    work: StageRun, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_token(monkeypatch, host, TOKEN)
    check_out(work, tmp_path / "clone")
    assert (tmp_path / "clone/.git/HEAD").read_text().strip() == work.commit
    assert TOKEN not in (tmp_path / "clone/.git/config").read_text()


def test_a_wrong_token_is_refused_and_not_printed(work: StageRun, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_token(monkeypatch, host, "stale-token")
    with refused(69, r"git@git\.example:team/project\.git: Authentication failed for .*A private repository") as raised:
        check_out(work, tmp_path / "clone")
    assert "stale-token" not in str(raised.value)


def test_the_reason_of_ssh_is_reported(work: StageRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh warns about a new host before it, and git gives general advice after it."""
    said = "Warning: Permanently added 'git.example' (ED25519) to the list of known hosts.\ngit@git.example: Permission denied (publickey)."
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 255\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    with pytest.raises(UserError, match=r"project\.git: git@git\.example: Permission denied \(publickey\)\. Let this machine read it"):
        check_out(work, tmp_path / "clone")


def test_an_exchange_that_ends_in_a_traceback_is_no_missing_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the user would be told to push what is there."""
    log = StageLog(print)
    for code in (1, 69):
        monkeypatch.setattr(node, "run_child", lambda *_, code=code, **__: code)
        with pytest.raises(StageError) as raised:
            exchange("restore", ["clean"], Path(), log)
        assert raised.value.exit_code == code
    monkeypatch.setattr(node, "run_child", lambda *_, **__: NOT_CACHED)
    assert not exchange("restore", ["clean"], Path(), log)


@pytest.fixture
def local(work: StageRun, tmp_path: Path) -> StageRun:
    """The same, of the repository in a folder."""
    return replace(work, repository=str(tmp_path / "work"))


def test_the_locks_of_a_git_that_was_killed_are_removed(local: StageRun, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    check_out(local, clone)
    git("commit", "-q", "--allow-empty", "-m", "b", at=tmp_path / "work")
    (branch,) = (clone / ".git/refs/remotes/origin").iterdir()
    for left in ("index", "config", "HEAD", f"refs/remotes/origin/{branch.name}"):
        (clone / f".git/{left}.lock").touch()
    later = git("rev-parse", "HEAD", at=tmp_path / "work")
    check_out(replace(local, commit=later), clone)
    assert (clone / ".git/HEAD").read_text().strip() == later


def test_a_branch_that_has_become_a_folder_of_branches_is_fetched(local: StageRun, tmp_path: Path) -> None:
    git("branch", "feature", at=tmp_path / "work")
    check_out(local, tmp_path / "clone")
    git("branch", "-D", "feature", at=tmp_path / "work")
    git("checkout", "-q", "-b", "feature/x", at=tmp_path / "work")
    git("commit", "-q", "--allow-empty", "-m", "b", at=tmp_path / "work")
    later = git("rev-parse", "HEAD", at=tmp_path / "work")
    check_out(replace(local, commit=later), tmp_path / "clone")
    assert (tmp_path / "clone/.git/HEAD").read_text().strip() == later


def test_only_a_commit_that_is_not_there_is_called_so(local: StageRun, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    with refused(78, r"work: no branch has commit 000000000000\. Push it: git push"):
        check_out(replace(local, commit="0" * 40), clone)
    hook = clone / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho fatal: no room >&2\nexit 1\n")
    hook.chmod(0o755)
    with refused(78, r"clone: no room\. Repair it, or remove this folder: it will be cloned again\."):
        check_out(local, clone)
