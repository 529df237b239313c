"""The blocks of docs/examples.md, run in its order."""

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch

from tests.test_docs import text_of

PAGE = text_of("docs/examples.md")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```(?:text|mermaid)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_block_of_python_prints_what_stands_below_it() -> None:
    assert len(BLOCKS) == PAGE.count("```python\n")
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for code, printed in BLOCKS:
            with redirect_stdout(StringIO()) as output:
                exec(code, names)
            assert output.getvalue() == printed, code
