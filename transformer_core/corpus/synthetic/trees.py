"""Reading the trees: their leaves, and the tokens of a sentence that these are."""

import re

_LEAF = re.compile(r" ([^\s()]+)\)")
_TOKEN = re.compile(r"o'clock|can(?=not\b)|'s\b|\d+:\d+|[\w-]+|[.,?]")


def leaves(tree: str) -> list[str]:
    """The words at the leaves of a bracketed tree, in their order."""
    return _LEAF.findall(tree)


def tokens(sentence: str) -> list[str]:
    """The tokens of a generated English sentence as the Penn Treebank has them: "'s" and both halves of "cannot" are tokens."""
    return _TOKEN.findall(sentence)
