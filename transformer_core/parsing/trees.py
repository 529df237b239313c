"""Phrase-structure trees: read from brackets, cleaned in the usual way, and linearised as the symbols that a parsing model outputs.

The forms are those of Vinyals et al. (2015), "(S (NP XX XX )NP (VP XX )VP )S", and of Liu and Zhang (2017), in-order, which begins with XX:
"XX (NP XX )NP (S XX (VP )VP )S", both of "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))" (docs/parsing.md).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from transformer_core.tasks import TreeOrder

WORD_SYMBOL = "XX"  # A tag may follow, after a hyphen.
# The root's label if no single constituent spans all words.
TOP = "TOP"
# Kinds of symbols: other text, of a word, and brackets.
OTHER, WORD, OPENING, CLOSING = range(4)
TREE_EXAMPLE = "A tree is (S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
_EMPTY = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")
# White space that may be part of a word, such as the no-break space in "1 000"; stages count words by all white space.
_OTHER_SPACE = re.compile(r"[^\S \t\r\n]")


@dataclass
class Tree:
    """A constituent with its parts, or a word with its tag; changed only while it is read."""

    label: str  # Of the constituent, or the word's part-of-speech tag.
    children: "list[Tree]" = field(default_factory=list)  # The parts of a constituent, at least one; empty for a word.
    word: str = ""  # Empty for a constituent.


# A step through a tree from left to right: the begin of a constituent, a word, or the end of a constituent.
Event = tuple[Literal["open", "word", "close"], Tree]


def events(tree: Tree) -> Iterator[Event]:
    """Yield the events of a tree, without recursion, because a tree from a file may be deeper than Python's stack."""
    waiting = [_first(tree)]
    while waiting:
        kind, node = event = waiting.pop()
        yield event
        if kind == "open":
            waiting.append(("close", node))
            waiting.extend(_first(child) for child in reversed(node.children))


def _first(tree: Tree) -> Event:
    return ("open" if tree.children else "word"), tree


def leaves(tree: Tree) -> list[Tree]:
    """Return the words with their tags, from left to right."""
    return [node for kind, node in events(tree) if kind == "word"]


def words(tree: Tree) -> str:
    """Return the words, separated by spaces."""
    return " ".join(leaf.word for leaf in leaves(tree))


def bracketed(tree: Tree) -> str:
    """Return the tree in the Penn Treebank's brackets, in one line, as `read_tree` reads it."""
    parts = []
    for kind, node in events(tree):
        if kind == "close":
            parts.append(")")
        else:
            parts.append(f" ({node.label}" if kind == "open" else f" ({node.label} {node.word})")
    return "".join(parts).lstrip()


def linearised(tree: Tree, order: TreeOrder = "top-down", *, tags: bool = False) -> str:
    """Return the linearised form of a tree: its symbols, separated by spaces; with `tags` a word's has its tag."""
    before, symbols = int(order == "in-order"), []  # Number of children before the opening bracket.
    waiting: list[Tree | str] = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            symbols.append(part)
        elif part.children:
            waiting += reversed([*part.children[:before], f"({part.label}", *part.children[before:], f"){part.label}"])
        else:
            symbols.append(f"{WORD_SYMBOL}-{part.label}" if tags else WORD_SYMBOL)
    return " ".join(symbols)


def kind_of(symbol: str) -> int:
    """Return the kind of a symbol: `WORD`, `OPENING`, `CLOSING` or `OTHER`."""
    if symbol.startswith(WORD_SYMBOL):
        return WORD
    return {"(": OPENING, ")": CLOSING}.get(symbol[:1], OTHER) if len(symbol) > 1 else OTHER


class BegunTree(NamedTuple):
    """A linearised tree as far as it is written, by the ids of its symbols; its words are numbered from 0."""

    written: int = 0  # Number of words.
    open: tuple[tuple[int, int], ...] = ()  # Opening bracket and first word of each constituent that is not closed, the innermost last.
    part: int = 0  # First word of the part that ended last.
    opened: int = 0  # Brackets opened since the last word.
    length: int = 0  # Number of symbols.
    last: int = OTHER  # Kind of the last symbol.
    in_order: bool = False

    def after(self, symbol: int, kind: int) -> "BegunTree":
        """Return the tree with one more symbol; other text changes nothing, nor does a bracket that closes nothing."""
        if kind == WORD:
            return BegunTree(self.written + 1, self.open, self.written, 0, self.length + 1, kind, self.in_order or not self.last)
        if kind == OPENING:
            opened = (symbol, self.part if self.in_order else self.written)
            return BegunTree(self.written, (*self.open, opened), self.part, self.opened + 1, self.length + 1, kind, self.in_order)
        if kind == CLOSING and self.open:
            return BegunTree(self.written, self.open[:-1], self.open[-1][1], self.opened, self.length + 1, kind, self.in_order)
        return self


def read_tree(text: str) -> Tree:
    """Read the tree in a bracketed text, cleaned as by `read_trees`. Raises `ValueError`: malformed, or not one tree with a word."""
    found = [tree for _, tree in read_trees([text])]
    if len(found) != 1 or found[0] is None:
        raise ValueError(f"{len(found)} trees, or one without a word, where one tree should be")
    return found[0]


def read_trees(lines: Iterable[str]) -> Iterator[tuple[int, Tree | None]]:
    """Yield the trees in bracketed text, each with the number (from 1) of the line in which it ends; a tree may have many lines.

    Trees are cleaned as usual for training and scoring parsers: traces (-NONE-) and constituents with nothing else are removed, functions
    and indices are removed from labels (NP-SBJ-1 and NP=2 become NP; -LRB- stays), and so is a bracket around the whole tree that is
    empty, TOP, ROOT or S1. A tree of which nothing is left is yielded as None.

    Raises `ValueError`: malformed brackets, or other white space than space, tab and line ends; the message begins with the line's number.
    """
    stack: list[Tree] = []
    before = ""
    number = 0
    for number, line in enumerate(lines, start=1):
        if odd := _OTHER_SPACE.search(line):
            raise ValueError(f"{number}: U+{ord(odd[0]):04X} is white space: write _ for it in a word, a space between words")
        for token in _TOKEN.findall(line):
            if token == "(":
                stack.append(Tree(""))
            elif not stack:
                raise ValueError(f"{number}: {token!r} outside of brackets")
            elif token == ")" and before != ")" and not stack[-1].children:
                raise ValueError(f"{number}: a bracket with nothing in it")
            elif token == ")":
                closed = _closed(stack.pop())
                if stack:
                    stack[-1].children += [closed] if closed else []
                else:
                    yield number, _without_top(closed)
            elif before == "(":
                stack[-1].label = token
            else:
                stack[-1].children.append(Tree("", word=token))
            before = token
    if stack:
        raise ValueError(f"{number}: {len(stack)} brackets are not closed at the end")


def _closed(node: Tree) -> Tree | None:
    """Return the constituent or the tagged word of a closed bracket; None if nothing is left of it."""
    loose = [child for child in node.children if not child.label]
    if node.label == _EMPTY:
        return None
    if len(node.children) == len(loose) == 1:
        return Tree(_without_function(node.label) or TOP, word=loose[0].word)
    # A word without a bracket of its own, beside others, becomes its own tag.
    children = [child if child.label else Tree(child.word, word=child.word) for child in node.children]
    return Tree(_without_function(node.label) or TOP, children) if children else None


def _without_function(label: str) -> str:
    """Return NP for NP-SBJ-1 and NP=2; a label that begins with a hyphen or =, such as -LRB-, stays."""
    return label if label.startswith(("-", "=")) else re.split(r"[-=]", label, maxsplit=1)[0]


def _without_top(tree: Tree | None) -> Tree | None:
    if tree is None or tree.word:
        return tree and Tree(TOP, [tree])
    while tree.label in (TOP, "ROOT", "S1") and len(tree.children) == 1 and tree.children[0].children:
        (tree,) = tree.children
    return tree


def repaired(symbols: str, gold: Sequence[Tree]) -> tuple[Tree, bool]:
    """Return a tree over the words and tags of the gold tree for a model's output, whatever that is, and whether it had to be repaired.

    Symbols are read in order; other text is ignored. If the first is XX, "(X" takes the child before it into its constituent. ")X" closes
    the innermost open X and all constituents in it, and is ignored if no X is open. XX beyond the last word is ignored. At the end, missing
    words go to the innermost open constituent that has a word, or to the root, and all constituents are closed. Constituents without a
    word are removed. If no single constituent spans all words, the root is TOP, which EVALB ignores.

    Args:
        symbols: the output, with white space between symbols.
        gold: the words with their tags (`leaves`), at least one; EVALB ignores punctuation by its tags.
    """
    whole, in_order = Tree(TOP), symbols.startswith(WORD_SYMBOL)
    stack, used, malformed = [whole], 0, False
    for symbol, kind in ((symbol, kind_of(symbol)) for symbol in symbols.split()):
        if kind == WORD and used < len(gold):
            stack[-1].children.append(gold[used])
            used += 1
        elif kind == OPENING:
            first = [stack[-1].children.pop()] if in_order and stack[-1].children else []
            malformed |= in_order and not first
            stack.append(Tree(symbol[1:], first))
        elif kind == CLOSING and any(node.label == symbol[1:] for node in stack[1:]):
            malformed |= stack[-1].label != symbol[1:] or not stack[-1].children
            while _close_last(stack) != symbol[1:]:
                pass
        else:
            malformed = True
    malformed |= len(stack) > 1 or used < len(gold)
    holder = next((node for node in reversed(stack) if node.children), whole)
    holder.children += gold[used:]
    while len(stack) > 1:
        _close_last(stack)
    root = whole.children[0] if len(whole.children) == 1 and whole.children[0].children else None
    return root or whole, malformed or root is None


def _close_last(stack: list[Tree]) -> str:
    """Close the innermost constituent and return its label."""
    node = stack.pop()
    if node.children:
        stack[-1].children.append(node)
    return node.label
