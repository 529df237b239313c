import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from transformer_core.parsing.brackets import differing
from transformer_core.parsing.drawings import tree_figure
from transformer_core.parsing.trees import Tree, bracketed, leaves, linearised, read_tree, read_trees, repaired, words
from transformer_core.pictures.drawing import SECOND

DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
GIVE = "(S (NP (PRP We)) (VP (VBD gave) (PRT (RP up)) (NP ($ $) (NN plan))) (. .))"
LABELS = st.sampled_from(["S", "NP", "VP", "PP", "-LRB-", "X"])
LEAVES = st.builds(Tree, st.sampled_from(["DT", "NN", ",", "."]), word=st.sampled_from(["a", "dog", ",", "."]))
TREES = st.recursive(LEAVES, lambda parts: st.builds(Tree, LABELS, st.lists(parts, min_size=1, max_size=4).map(tuple))).filter(
    lambda tree: bool(tree.children)
)


def test_the_linearised_form_is_that_of_the_literature() -> None:
    assert linearised(read_tree(DOG)) == "(S (NP XX XX )NP (VP XX )VP XX )S"
    assert words(read_tree(DOG)) == "The dog barks ."
    assert bracketed(read_tree(DOG)) == DOG


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        (f"( {DOG} )", DOG),
        (f"(TOP {DOG})", DOG),
        (f"(ROOT (S1 {DOG}))", DOG),
        ("(S (NP-SBJ-1 (PRP it)) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1)))))", "(S (NP (PRP it)) (VP (VBD was) (VP (VBN seen))))"),
        ("(S (NP=2 (PRP it)) (PRN (-LRB- -LRB-) (RB sic)))", "(S (NP (PRP it)) (PRN (-LRB- -LRB-) (RB sic)))"),
        ("(S (= =) (NN=1 dog))", "(S (= =) (NN dog))"),
        ("(NN dog)", "(TOP (NN dog))"),
        ("( (NP (NN dog)) (VP (VB bark)) )", "(TOP (NP (NN dog)) (VP (VB bark)))"),
    ],
)
def test_trees_are_cleaned_as_the_field_does(raw: str, cleaned: str) -> None:
    assert bracketed(read_tree(raw)) == cleaned


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
        (["(CD 1\u00a0000)"], r"1: U\+00A0 is white space"),
    ],
)
def test_malformed_brackets_are_told_with_their_line(lines: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        list(read_trees(lines))


@given(TREES)
def test_brackets_are_read_back_as_they_were_written(tree: Tree) -> None:
    assert read_tree(bracketed(tree)) == tree


@given(TREES)
def test_the_symbols_of_a_tree_give_the_tree_and_need_no_repair(tree: Tree) -> None:
    found = repaired(linearised(tree), leaves(tree))
    assert found.tree == tree
    assert not found.malformed


@given(TREES, st.lists(st.sampled_from(["(S", "(NP", ")NP", ")S", ")X", "XX", "(", ")", "noise"]), max_size=60))
def test_any_output_becomes_a_tree_over_the_sentence(tree: Tree, symbols: list[str]) -> None:
    gold = leaves(tree)
    found = repaired(" ".join(symbols), gold)
    assert leaves(found.tree) == gold
    assert found.tree.children
    assert repaired(linearised(found.tree), gold).tree == found.tree


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("", "(TOP (DT The) (NN dog) (VBZ barks) (. .))"),
        ("(S (NP XX XX (VP XX )S XX", "(TOP (S (NP (DT The) (NN dog) (VP (VBZ barks)))) (. .))"),
        ("(S (NP XX XX )VP XX )NP XX )S", "(S (NP (DT The) (NN dog) (VBZ barks)) (. .))"),
        ("(S XX XX XX XX XX XX )S", "(S (DT The) (NN dog) (VBZ barks) (. .))"),
        ("(S (NP XX", "(S (NP (DT The) (NN dog) (VBZ barks) (. .)))"),
        ("(S XX XX XX XX", "(S (DT The) (NN dog) (VBZ barks) (. .))"),
        ("(S (NP )NP XX XX XX XX )S", "(S (DT The) (NN dog) (VBZ barks) (. .))"),
    ],
)
def test_malformed_output_is_repaired_by_the_rules(symbols: str, tree: str) -> None:
    found = repaired(symbols, leaves(read_tree(DOG)))
    assert bracketed(found.tree) == tree
    assert found.malformed


def test_a_tree_deeper_than_pythons_stack_is_read_and_written() -> None:
    deep = "(S " * 20_000 + "(NN dog)" + ")" * 20_000
    assert bracketed(read_tree(deep)) == deep
    assert linearised(repaired("(S " * 20_000 + "XX", [Tree("NN", word="dog")]).tree).count("(S") == 20_000


def test_of_two_drawn_trees_the_constituents_that_the_other_lacks_are_marked() -> None:
    gold = read_tree(GIVE)
    found = repaired("(S (NP XX )NP (VP XX (PP XX (NP XX XX )NP )PP )VP XX )S", leaves(gold)).tree
    (axes,), (other,) = (tree_figure(tree, differing(tree, beside)).axes for tree, beside in ((gold, found), (found, gold)))
    marked = [[text.get_text() for text in drawn.texts if to_hex(text.get_color()) == SECOND] for drawn in (axes, other)]
    assert marked == [["PRT"], ["PP"]]
    words = [text for text in axes.texts if text.get_text() in ("We", "gave", "up", "plan")]
    assert len({word.get_position()[1] for word in words}) == 1
    assert [word.get_text() for word in sorted(words, key=lambda word: word.get_position()[0])] == ["We", "gave", "up", "plan"]
    levels = {text.get_text(): -text.get_window_extent().y0 for text in axes.texts}
    assert levels["S"] < levels["VP"] < levels["PRT"] < levels["RP"] < levels["up"]
    assert sorted(text.get_text() for text in axes.texts) == sorted([*GIVE.replace("(", " ").replace(")", " ").split()])
    assert len(axes.lines) == len(axes.texts) - 6 - 1  # A line down to each tag and each constituent but the root.


@pytest.mark.parametrize("tree", [GIVE, "(S (WHADVP (WHPP (IN a))) (WHADVP (X b)) (NP (CD iiiiiiii) (CD WASHINGTON)))"])
def test_every_text_of_a_tree_is_within_the_picture_and_beside_the_others(tree: str) -> None:
    figure = tree_figure(read_tree(tree), [False] * 9)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_chinese_character_has_the_room_of_two_letters() -> None:
    trees = [read_tree(f"(S (NN {first}) (NN {second}))") for first, second in (("abcdefghijkl", "abcd"), ("自然语言处理", "模型"))]
    latin, chinese = ([text.get_position() for text in tree_figure(tree, [False]).axes[0].texts] for tree in trees)
    assert chinese == latin
