"""The number of lines, which may fall and must not grow unnoticed: whoever adds a feature takes one away or raises a bound on purpose."""

import subprocess

from tests.clone import ROOT

MOST_LINES = {"tests": 21_700, "outside tests": 24_197}


def test_the_lines_of_python_are_within_their_bounds() -> None:
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    lines = dict.fromkeys(MOST_LINES, 0)
    for file in files:
        if (ROOT / file).exists():
            lines["tests" if file.startswith("tests/") else "outside tests"] += (ROOT / file).read_bytes().count(b"\n")
    assert all(lines[part] <= most for part, most in MOST_LINES.items()), lines
