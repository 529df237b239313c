from functools import reduce
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models.on_disk import SMALL, translations, write_model
from tests.refusals import refused
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.models.architectures import build
from transformer_core.parsing import valid_trees
from transformer_core.parsing.trees import WORD_SYMBOL, Tree, bracketed, leaves, linearised, read_tree, read_trees, repaired, words
from transformer_core.tasks import TreeOrder

DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
LABELS = st.sampled_from(["S", "NP", "VP", "PP", "-LRB-", "X"])
LEAVES = st.builds(Tree, st.sampled_from(["DT", "NN", ",", "."]), word=st.sampled_from(["a", "dog", ",", "."]))
ORDERS = st.sampled_from(get_args(TreeOrder))
TREES = st.recursive(LEAVES, lambda parts: st.builds(Tree, LABELS, st.lists(parts, min_size=1, max_size=4))).filter(
    lambda tree: bool(tree.children)
)


def test_the_linearised_form_is_that_of_the_literature() -> None:
    assert linearised(read_tree(DOG)) == "(S (NP XX XX )NP (VP XX )VP XX )S"
    assert linearised(read_tree(DOG), "in-order") == "XX (NP XX )NP (S XX (VP )VP XX )S"
    assert words(read_tree(DOG)) == "The dog barks ."
    assert bracketed(read_tree(DOG)) == DOG


def test_trees_are_cleaned_as_the_field_does() -> None:
    cleaned = {
        f"( {DOG} )": DOG,
        f"(TOP {DOG})": DOG,
        f"(ROOT (S1 {DOG}))": DOG,
        "(S (NP-SBJ-1 (PRP it)) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1)))))": "(S (NP (PRP it)) (VP (VBD was) (VP (VBN seen))))",
        "(S (NP=2 (PRP it)) (PRN (-LRB- -LRB-) (RB sic)))": "(S (NP (PRP it)) (PRN (-LRB- -LRB-) (RB sic)))",
        "(S (= =) (NN=1 dog))": "(S (= =) (NN dog))",
        "(NN dog)": "(TOP (NN dog))",
        "( (NP (NN dog)) (VP (VB bark)) )": "(TOP (NP (NN dog)) (VP (VB bark)))",
    }
    assert {raw: bracketed(read_tree(raw)) for raw in cleaned} == cleaned


def test_a_tree_may_stand_on_several_lines_and_several_on_one() -> None:
    lines = ["( (S", "  (NP (NN dog))", "  (VP (VB bark))) )", "", f"{DOG} {DOG}", "(S (-NONE- *))"]
    found = [(number, tree and linearised(tree)) for number, tree in read_trees(lines)]
    dog = linearised(read_tree(DOG))
    assert found == [(3, "(S (NP XX )NP (VP XX )VP )S"), (5, dog), (5, dog), (6, None)]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["(S", "(NP"], "2: 2 brackets are not"),
        ([DOG, ")"], r"2: '\)' outside"),
        (["dog"], "1: 'dog'"),
        (["(S (dog) (VP (VB barks)))"], "1: a bracket with nothing in it"),
        (["(CD 1\u00a0000)"], r"1: U\+00A0 is white space"),
    ],
)
def test_malformed_brackets_are_told_with_their_line(lines: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        list(read_trees(lines))


@given(TREES)
def test_brackets_are_read_back_as_they_were_written(tree: Tree) -> None:
    assert read_tree(bracketed(tree)) == tree


@given(TREES, ORDERS, st.booleans())
def test_the_symbols_of_a_tree_give_the_tree_and_need_no_repair(tree: Tree, order: TreeOrder, tags: bool) -> None:
    assert repaired(linearised(tree, order, tags=tags), leaves(tree)) == (tree, False)


@given(TREES, ORDERS, st.lists(st.sampled_from(["(S", "(NP", ")NP", ")S", ")X", "XX", "XX-NN", "(", ")", "noise"]), max_size=60))
def test_any_output_becomes_a_tree_over_the_sentence(tree: Tree, order: TreeOrder, symbols: list[str]) -> None:
    gold = leaves(tree)
    found, _ = repaired(" ".join(symbols), gold)
    assert leaves(found) == gold
    assert found.children
    assert repaired(linearised(found, order), gold)[0] == found


def test_malformed_output_is_repaired_by_the_rules() -> None:
    trees = {
        "": "(TOP (DT The) (NN dog) (VBZ barks) (. .))",
        "(S (NP XX XX (VP XX )S XX": "(TOP (S (NP (DT The) (NN dog) (VP (VBZ barks)))) (. .))",
        "(S (NP XX XX )VP XX )NP XX )S": "(S (NP (DT The) (NN dog) (VBZ barks)) (. .))",
        "(S XX XX XX XX XX XX )S": "(S (DT The) (NN dog) (VBZ barks) (. .))",
        "(S (NP XX": "(S (NP (DT The) (NN dog) (VBZ barks) (. .)))",
        "(S XX XX XX XX": "(S (DT The) (NN dog) (VBZ barks) (. .))",
        "(S (NP )NP XX XX XX XX )S": "(S (DT The) (NN dog) (VBZ barks) (. .))",
        "XX (NP XX )NP (S (VP XX )S XX": "(TOP (S (VP (NP (DT The) (NN dog)) (VBZ barks))) (. .))",
    }
    found = {symbols: repaired(symbols, leaves(read_tree(DOG))) for symbols in trees}
    assert {symbols: bracketed(tree) for symbols, (tree, _) in found.items()} == trees
    assert all(malformed for _, malformed in found.values())


def test_a_tree_deeper_than_pythons_stack_is_read_and_written() -> None:
    deep = "(S " * 20_000 + "(NN dog)" + ")" * 20_000
    assert bracketed(read_tree(deep)) == deep
    assert linearised(repaired("(S " * 20_000 + "XX", [Tree("NN", word="dog")])[0]).count("(S") == 20_000


@given(st.lists(st.integers(0, valid_trees._END)), st.integers(0, 9))
def test_something_is_allowed_after_any_symbols_also_wrong_ones(kinds: list[int], words: int) -> None:
    assert valid_trees._allowed(reduce(lambda tree, kind: tree.after(0, kind), kinds, valid_trees.BegunTree()), words)


@pytest.mark.parametrize(("seed", "first"), [(2, "("), (12, WORD_SYMBOL)], ids=["top-down", "in-order"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_that_has_learnt_nothing_writes_valid_trees_over_all_words(tmp_path: Path, beam: int, seed: int, first: str) -> None:
    torch.manual_seed(seed)
    symbols = [f"\u2581{symbol}" for symbol in ("(S", ")S", "(NP", ")NP", "(VP", WORD_SYMBOL, "XX-NN")]  # (VP cannot be closed.
    directory = write_model(build(SMALL, 46), tmp_path / "model", target="tree", user_symbols=symbols)
    # With so many words, brackets as deep as may be would not fit the longest output.
    sentences = ["the dog sees a cat", "a", " ".join(["cat"] * 60), "a house sees"]
    translator = Translator.load(directory)
    search = Search(beam, max_extra=300)
    for sentence, outputs in zip(sentences, translations(translator, sentences, search), strict=True):
        gold = [Tree("NN", word=word) for word in sentence.split()]
        assert outputs[0].text.startswith(first)
        for output in outputs:
            assert sum(symbol.startswith(WORD_SYMBOL) for symbol in output.text.split()) == len(gold)
            assert "(VP" not in output.text
            assert not repaired(output.text, gold)[1]
    with refused(78, "max_extra: 1 is too few for a tree"):
        translations(translator, sentences[:1], Search(beam, max_extra=1))
    together = [outputs[0].text for outputs in translations(translator, sentences, search)]
    assert together == [translations(translator, [sentence], search)[0][0].text for sentence in sentences]
