"""The declaration of the task: bracketed trees become symbols in stage clean, and F1 is the score."""

from collections.abc import Iterator
from pathlib import Path

from transformer_core.corpus.text import read_lines
from transformer_core.errors import UserError
from transformer_core.parsing.trees import TREE_EXAMPLE, bracketed, linearised, read_tree, read_trees, words
from transformer_core.tasks import Task, TreeOrder


def read_file(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the words and the tree, in one line, of each tree in a file. Raises `UserError` (65): malformed brackets."""
    try:
        for _, tree in read_trees(read_lines(path)):
            if tree is not None:
                yield words(tree).encode(), bracketed(tree).encode()
    except ValueError as error:
        raise UserError(f"{path}:{error}", TREE_EXAMPLE) from None


def to_symbols(pair: tuple[str, str], path: Path, number: int, order: TreeOrder, tags: bool) -> str:
    """Return the symbols of the tree in line `number` of the file at `path`, in this order, with or without the tags of words.

    Raises `UserError` (65): not a tree, or a tree over other words than the source's.
    """
    source, target = pair
    try:
        tree = read_tree(target)
    except ValueError as error:
        raise UserError(f"{path}:{number}: not a tree: {error}", TREE_EXAMPLE) from None
    if words(tree) != source:
        raise UserError(f"{path}:{number}: the tree's words are not those of the source: {words(tree)!r}", "Write them alike.")
    return linearised(tree, order, tags=tags)


TASK = Task(
    name="parsing",
    score="F1",
    max_extra=300,  # Paper 6.3.
    corpus_score="transformer_core.parsing.brackets:corpus_f1",
    scoring="transformer_core.parsing.parse_scores:SCORING",
    read_file=read_file,
    to_symbols=to_symbols,
    constraint="transformer_core.parsing.valid_trees:ValidTrees",
    cased_because="The labels of trees are capitals.",
)
