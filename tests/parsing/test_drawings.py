import pytest
from matplotlib.colors import to_hex

from transformer_core.parsing.brackets import differing
from transformer_core.parsing.drawings import tree_figure
from transformer_core.parsing.trees import leaves, read_tree, repaired
from transformer_core.pictures.drawing import SECOND

GIVE = "(S (NP (PRP We)) (VP (VBD gave) (PRT (RP up)) (NP ($ $) (NN plan))) (. .))"


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
