"""The number of lines, which may fall and must not grow unnoticed: whoever adds a feature takes one away or raises a bound on purpose."""

from tests.clone import ROOT, git

MOST_LINES = {"tests": 21_700, "outside tests": 24_200}


def test_the_lines_of_python_are_within_their_bounds() -> None:
    lines = dict.fromkeys(MOST_LINES, 0)
    for file in git("ls-files", "*.py", at=ROOT).splitlines():
        if (ROOT / file).exists():
            lines["tests" if file.startswith("tests/") else "outside tests"] += (ROOT / file).read_bytes().count(b"\n")
    assert all(lines[part] <= most for part, most in MOST_LINES.items()), lines
