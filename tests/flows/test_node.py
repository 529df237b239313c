"""A node clones a repository that not everybody can read."""

import base64
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from flows.cluster.node import StageRun, check_out
from tests.refusals import refused
from tests.serving import Quiet, serving
from transformer_core.errors import UserError

TOKEN = "secret-token"
SSH_ADDRESS = "git@git.example:team/project.git"


class Private(Quiet, SimpleHTTPRequestHandler):
    """A folder of repositories for whoever sends the token as a password."""

    def do_GET(self) -> None:
        user = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if self.headers["Authorization"] == f"Basic {user}":
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """The host and port that serve a repository, team/project.git, with one commit."""
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    bare = tmp_path / "served/team/project.git"
    for command in (
        ["init", "-q", tmp_path / "work"],
        ["-C", tmp_path / "work", *author, "commit", "-q", "--allow-empty", "-m", "a"],
        ["clone", "-q", "--bare", tmp_path / "work", bare],
        ["-C", bare, "update-server-info"],
    ):
        subprocess.run(["git", *command], check=True)
    with serving(partial(Private, directory=str(tmp_path / "served"))) as address:
        yield address


@pytest.fixture
def work(tmp_path: Path, host: str) -> StageRun:
    """The stage train at the commit, of the repository as the remote of a person with an ssh key names it."""
    assert host
    commit = subprocess.run(["git", "-C", tmp_path / "work", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    return StageRun("train", SSH_ADDRESS, commit.strip())


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
