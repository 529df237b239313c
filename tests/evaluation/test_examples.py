from hypothesis import given
from hypothesis import strategies as st

from transformer_core.evaluation.examples import GroupScore, choose_examples, scores_by_length
from transformer_core.evaluation.metrics import SCORING, score


def sizes_of(sources: list[str]) -> dict[str, int]:
    """The number of sentences in each group."""
    return {group.label: group.size for group in scores_by_length(SCORING, sources, sources, sources)}


def test_buckets_of_length_end_after_every_fifth_word_or_character_of_text_without_spaces_and_at_fifty() -> None:
    lengths = [200, 51, 50, 46, 10, 6, 5, 1, 0]
    sources = [" ".join(["word"] * length) for length in lengths]
    sources[-3] = f"<2de> {sources[-3]}"  # Tags are no words.
    assert sizes_of(sources) == {"0": 1, "1-5": 2, "6-10": 2, "46-50": 2, "51+": 2}
    assert sizes_of(["一只狗在草地上奔跑、一个孩子看着它。", "一只 狗 在 草地 上 奔跑"]) == {"6-10": 1, "16-20": 1}


def test_bleu_of_a_bucket_is_that_of_its_sentences_alone() -> None:
    sources = ["short", "word " * 11, "short", "word " * 12]
    outputs, references = ["a b c d", "e f g h i", "j k l m", "n o p q"], ["a b c x", "e f g h z", "j k l m", "n o p q"]
    long = score(outputs[1::2], references[1::2], "de").values["bleu"]
    assert scores_by_length(SCORING, sources, outputs, references)[1] == GroupScore("11-15", 2, long)


@given(scores=st.lists(st.integers(0, 10), min_size=1, max_size=30), count=st.integers(1, 40))
def test_examples_are_from_the_best_to_the_worst_at_equal_distances_without_those_that_are_right(scores: list[int], count: int) -> None:
    others = sorted((score for score in scores if score < 10), reverse=True)
    chosen = choose_examples(scores, [score == 10 for score in scores], count)
    assert len(set(chosen)) == len(chosen) == min(count, len(others))
    found = [scores[index] for index in chosen]
    assert found == sorted(found, reverse=True)
    if count >= len(others):
        assert found == others
    elif count > 1:
        assert (found[0], found[-1]) == (others[0], others[-1])
