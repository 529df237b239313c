"""The pages for people: links lead to a file and a heading, linked names are defined there, no page and no command is forgotten."""

import argparse
import ast
import csv
import re
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from flows.dvc.settings import settings_of_run
from tests import tables
from tests.clone import ROOT, git
from transformer_core import cli
from transformer_core.config import Params

FILES = {name for name in git("ls-files", "-co", "--exclude-standard", at=ROOT).splitlines() if (ROOT / name).is_file()}
PAGES = sorted(name for name in FILES if name.endswith(".md"))
# What a reader may be asked to read: about an hour and a half.
MOST_WORDS = 22_000
COUNTED = {"README.md", "CONTRIBUTING.md", "corpora/README.md", "pretrained/README.md", "benchmarks/README.md"}


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def links(page: str) -> list[tuple[str, str]]:
    """Texts and targets; none of the web's."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return [(text, target) for text, target in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", prose) if "://" not in target]


def anchors(markdown: str) -> set[str]:
    """The headings of a document as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def defined(path: Path) -> set[str]:
    """The functions, classes, methods and constants that a file, or any file of a folder, defines."""
    if path.is_dir():
        return set().union(*map(defined, path.rglob("*.py")))
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_a_link_leads_to_a_file_and_a_heading_and_a_name_to_its_definition() -> None:
    checked = 0
    for page in PAGES:
        for text, target in links(page):
            path, _, anchor = target.partition("#")
            file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            assert file.exists(), (page, target)
            assert file.is_relative_to(ROOT), (page, target)
            assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), (page, target)
            if re.fullmatch(r"`\w+`", text) and (file.suffix == ".py" or file.is_dir()):
                assert text.strip("`") in defined(file), (page, text, target)
                checked += 1
    assert checked


def test_a_file_of_code_that_a_page_names_exists() -> None:
    checked = 0
    for page in set(PAGES) - {"CHANGELOG.md"}:
        for name in re.findall(r"(?<![\w/.])(?:transformer_core|flows|tests|benchmarks)/[\w/-]+\.\w+", text_of(page)):
            assert "NAME" in name or name in FILES, (page, name)
            checked += 1
    assert checked


def test_the_settings_in_the_commands_of_a_page_suit_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for name in (*PAGES, "prefect.yaml") for line in text_of(name).splitlines()]
    monkeypatch.chdir(tmp_path)
    checked = 0
    for line in lines:
        assigned = re.findall(r"(?:-S |--set |flows\.sweep params |(?<=,\d) )(\w+\.\w+)=([\w.]+)", line)
        assigned += re.findall(r'"(\w+\.\w+)": (\w+)', line)
        recipe = re.search(r'(?:--recipe |"recipe": ")([\w-]+)', line)
        if assigned:
            overrides = {key: YAML(typ="safe").load(value) for key, value in assigned}
            settings_of_run(recipe[1] if recipe else "tatoeba", overrides)
            checked += len(assigned)
    assert checked


def test_the_settings_are_those_of_the_schema_and_the_commands_those_of_the_parsers_and_the_makefile() -> None:
    assert re.findall(r"^## (\w+)$", text_of("docs/settings.md"), re.MULTILINE) == list(Params.model_fields)
    assert [name for name in tables.PAGES if tables.page(name) != text_of(f"docs/{name}.md")] == [], "python -m tests.tables"


def test_the_papers_table_2_is_that_of_its_file() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text_of("docs/paper.md").splitlines()]
    _, *published = csv.reader(text_of("benchmarks/results/table2-published.csv").splitlines())
    assert [row for row in cells if row in published] == published


def test_every_page_is_in_the_index_and_on_the_site() -> None:
    pages = {page for page in PAGES if page.startswith("docs/")}
    indexed = {f"docs/{target.partition('#')[0]}" for _, target in links("docs/index.md") if not target.startswith("../")}
    assert indexed | {"docs/index.md"} == pages
    assert pages | COUNTED <= set(re.findall(r"^ +- (\S+\.md)$", text_of("mkdocs.yml"), re.MULTILINE))


def test_the_pages_are_short_enough_to_be_read() -> None:
    words = {page: len(text_of(page).split()) for page in PAGES if page.startswith("docs/") or page in COUNTED}
    assert sum(words.values()) <= MOST_WORDS, dict(sorted(words.items(), key=lambda item: -item[1]))


def test_no_page_names_a_command_that_does_not_exist() -> None:
    parser = cli._parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for page in PAGES:
        assert set(re.findall(r"(?:^|`|/|\| )transformer-core (\w+)", text_of(page), re.MULTILINE)) <= set(commands), page


def test_a_server_that_others_can_reach_has_a_link_to_what_it_needs() -> None:
    """Without an option Prefect's and MLflow's servers listen on the loopback."""
    opened = []
    for name in FILES - {"tests/test_docs.py"}:
        if (ROOT / name).suffix in {".md", ".py", ".yaml", ".json", ".toml", ".sh", ".env", ""}:
            text = re.sub(r"^### Open servers$.*?^### ", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
            opened += [(name, part) for part in text.split("\n\n") if re.search(r"0\.0\.0\.0|--host[= ](?!127\.0\.0\.1|localhost)", part)]
    assert not [name for name, part in opened if "#open-servers" not in part]
    assert len(opened) == 1


def test_each_block_of_the_examples_prints_what_stands_below_it() -> None:
    """The page's blocks run in its order."""
    page = text_of("docs/examples.md")
    blocks = re.findall(r"^```python\n(.*?)^```\n\n```(?:text|mermaid)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python\n")
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for code, printed in blocks:
            with redirect_stdout(StringIO()) as output:
                exec(code, names)
            assert output.getvalue() == printed, code
