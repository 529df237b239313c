"""Leaves of a tree in the brackets of the Penn Treebank, and the tokens of a sentence that they should be."""

import re


def leaves(tree: str) -> list[str]:
    """The words at the leaves, in their order."""
    return re.findall(r" ([^\s()]+)\)", tree)


def tokens(sentence: str) -> list[str]:
    """The tokens of a generated English sentence: "'s" and both halves of "cannot" are tokens."""
    return re.findall(r"o'clock|can(?=not\b)|'s\b|\d+:\d+|[\w-]+|[.,?]", sentence)
