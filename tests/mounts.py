"""Mounts that one command alone sees. They need no rights where the system allows user namespaces; some do not (Ubuntu's since 24.04)."""

import subprocess

import pytest

MOUNTING = ("unshare", "--map-root-user", "--mount")


def need_mounts() -> None:
    """Skip the test if the system allows none."""
    if subprocess.run([*MOUNTING, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let every user mount a file system")
