"""Brackets by EVALB's rules: its published sample, pairs counted by hand, and whatever a model may write."""

import tracemalloc

import pytest

from transformer_core.evaluation.comparison import comparison_text, side_by_side
from transformer_core.parsing.brackets import bracket_counts, corpus_f1
from transformer_core.parsing.parse_scores import SCORING, score
from transformer_core.parsing.trees import linearised, read_tree

THIS = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
# Of EVALB's sample (sample.gld, sample.tst, sample.rsl): the other tree and its published matched, gold and test brackets. Left out are the
# sentences that EVALB calls errors, because the words differ.
EVALB_SAMPLE = [
    ("(S (A (P this)) (B (Q is) (A (R a) (T test))))", (4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (C (R a) (T test))))", (3, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (U test))))", (4, 4, 4)),
    ("(S (C (P this)) (B (Q is) (A (R a) (U test))))", (3, 4, 4)),
    ("(S (A (P this)) (B (Q is) (R a) (A (T test))))", (3, 4, 4)),
    ("(S (A (P this) (Q is)) (A (R a) (T test)))", (2, 4, 3)),
    ("(S (P this) (Q is) (R a) (T test))", (1, 4, 1)),
    ("( (P this) (Q is) (R a) (T test))", (0, 4, 0)),
    ("(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", (4, 4, 5)),
    ("(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", (4, 4, 8)),
    ("(TOP (S (A (P this)) (B (Q is) (A (R a) (T test)))))", (4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (TT test))))", (4, 4, 4)),
    ("(S (A (P This)) (B (Q is) (A (R a) (T test))))", (4, 4, 4)),
    ("(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))", (4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (T test))) (-NONE- *))", (4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (T test))) (: *))", (4, 4, 4)),
]
LONG = f"(S{11 * ' (A (P this)) (B (Q is) (A (R a) (T test)))'})"  # A long sentence of the sample.
DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
GIVE = "(S (NP (PRP We)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN plan))) (. .))"
SAID = "(S (`` ``) (S (NP (PRP It)) (VP (VBZ is))) (, ,) ('' '') (NP (PRP he)) (VP (VBD said)) (. .))"
ASIDE = "(S (NP (NN Bob)) (PRN (: -) (ADVP (RB here)) (: -)) (VP (VBZ eats)))"
# Gold tree, a model's output, and the brackets of the gold tree, of the output and in both, counted by hand.
BY_HAND = [
    (DOG, "(S (NP XX XX )NP (VP XX )VP XX )S", (3, 3, 3)),
    (DOG, "(S (NP XX )NP (VP XX XX )VP XX )S", (3, 3, 1)),
    (DOG, "(S (VP XX XX )VP (NP XX )NP XX )S", (3, 3, 1)),
    (DOG, "(S XX XX XX XX )S", (3, 1, 1)),
    (DOG, "(S (NP XX XX )NP XX XX )S", (3, 2, 2)),
    (DOG, "(S (NP (NP XX XX )NP )NP (VP XX )VP XX )S", (3, 4, 3)),
    (DOG, "(S (NP XX XX )NP (VP XX XX )VP )S", (3, 3, 3)),
    (DOG, "XX XX XX XX", (3, 0, 0)),
    (DOG, "", (3, 0, 0)),
    (DOG, "(TOP (S (NP XX XX )NP (VP XX )VP XX )S )TOP", (3, 3, 3)),
    (GIVE, "(S (NP XX )NP (VP XX (PRT XX )PRT (NP XX XX )NP )VP XX )S", (5, 5, 5)),
    (GIVE, "(S (NP XX )NP (VP XX (ADVP XX )ADVP (NP XX XX )NP )VP XX )S", (5, 5, 5)),
    (GIVE, "(S (NP XX )NP (VP XX (PP XX (NP XX XX )NP )PP )VP XX )S", (5, 5, 4)),
    (GIVE, "(S (NP XX )NP (VP XX XX XX XX )VP XX )S", (5, 3, 3)),
    (GIVE, "(S (NP XX )NP (VP XX (PRT XX )PRT (NP XX XX", (5, 5, 5)),
    (SAID, "(S XX (S (NP XX )NP (VP XX )VP )S XX XX (NP XX )NP (VP XX )VP XX )S", (6, 6, 6)),
    (SAID, "(S (S XX (NP XX )NP (VP XX )VP XX XX )S (NP XX )NP (VP XX )VP XX )S", (6, 6, 6)),
    (SAID, "(S XX (NP XX )NP (VP XX XX XX (NP XX )NP (VP XX )VP )VP XX )S", (6, 5, 4)),
    (ASIDE, "(S (NP XX )NP (PRN XX (ADVP XX )ADVP XX )PRN (VP XX )VP )S", (5, 5, 5)),
    (ASIDE, "(S (NP XX )NP (ADVP XX XX XX )ADVP (VP XX )VP )S", (5, 4, 4)),
    (ASIDE, "(S (NP XX XX XX XX )NP (VP XX )VP )S", (5, 3, 2)),
]


def test_totals_are_those_of_evalbs_published_sample() -> None:
    """Its 17 valid sentences: the 16 pairs above and the long one; recall 87.76, precision 90.53, complete match 52.94."""
    others = [*(other for other, _ in EVALB_SAMPLE), LONG]
    golds = [*(f"{THIS[:-1]} (: *))" if ":" in other else THIS for other in others[:-1]), LONG]  # Over the words of the other tree.
    outputs = [linearised(read_tree(tree)) for tree in others]
    counted = [(matched, gold, found) for gold, found, matched, *_ in bracket_counts(outputs, golds).tolist()]
    assert counted[:-1] == [counts for _, counts in EVALB_SAMPLE]
    scores = score(outputs, golds)
    assert [round(scores.values[key], 2) for key in ("recall", "precision", "exact_match")] == [87.76, 90.53, 52.94]


def test_counts_and_f1_are_those_by_hand() -> None:
    golds, outputs, counts = zip(*BY_HAND, strict=True)
    assert list(map(tuple, bracket_counts(outputs, golds)[:, :3].tolist())) == list(counts)
    gold, found, matched = (sum(numbers) for numbers in zip(*counts, strict=True))
    scores = score(outputs, golds)
    f1, low, high, precision, recall, _ = scores.values.values()
    assert f1 == pytest.approx(200 * matched / (gold + found)) == pytest.approx(corpus_f1(outputs, golds))
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall))
    assert low < f1 < high
    # Of no bracket, and the one that was cut off.
    assert scores.shares["malformed"] == pytest.approx(100 * 3 / len(BY_HAND))
    assert SCORING.sentence_scores(outputs, golds)[0] == 100


def test_resamples_of_many_sentences_need_little_memory() -> None:
    golds, outputs = [THIS] * 1_000, [THIS, "(S"] * 500  # 1,000 resamples at once would take 40 MB.
    tracemalloc.start()
    try:
        score(outputs, golds)
        next(SCORING.comparisons(outputs, outputs[1:] + outputs[:1], golds))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_better_parser_is_significantly_better_and_an_equal_one_is_not() -> None:
    golds = [DOG, GIVE, SAID] * 20
    right = ["(S (NP XX XX )NP (VP XX )VP XX )S", "(S (NP XX )NP (VP XX (PRT XX )PRT (NP XX XX )NP )VP XX )S", BY_HAND[15][1]] * 20
    wrong = [output if index % 3 else "(S XX XX XX XX )S" for index, output in enumerate(right)]
    compared = next(SCORING.comparisons(wrong, right, golds))
    assert (compared.score.name, compared.candidate) == ("F1", 100)
    assert compared.difference == pytest.approx(100 - corpus_f1(wrong, golds))
    assert compared.significant
    same = next(SCORING.comparisons(right, right, golds))
    assert (same.difference, same.p_value) == (0, 1)
    assert not next(SCORING.comparisons([wrong[0], *right[1:]], right, golds)).significant


BARKS = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
RIGHT, FLAT = "(S (NP XX XX )NP (VP XX )VP )S", "(S XX XX XX )S"


def test_parsers_are_compared_by_f1_and_their_outputs_shown_as_trees() -> None:
    compared = side_by_side(SCORING, [FLAT] * 3, [FLAT, RIGHT, FLAT], [BARKS] * 3)
    (f1,) = compared.scores
    assert (f1.score.name, f1.baseline, f1.candidate) == ("F1", 50.0, pytest.approx(200 * 5 / 14))
    (gain,) = compared.gains
    assert (gain.line, gain.score_a, gain.score_b, gain.b) == (2, 50.0, 100.0, BARKS)
    assert "* p < 0.05 by paired approximate randomisation, two-sided, 10,000 trials: more than chance." in comparison_text(compared)
    trees = ["( (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks))))", "(S (DT The) (NN dog) (VBZ barks))", ""]
    of_trees = side_by_side(SCORING, [FLAT] * 3, trees, [BARKS] * 3)  # Trees in brackets are read as symbols.
    assert of_trees == side_by_side(SCORING, [FLAT] * 3, [RIGHT, FLAT, ""], [BARKS] * 3)
    assert of_trees.gains[0].score_b == 100.0


def test_a_sentence_without_a_bracket_that_counts_is_right_if_its_tree_is() -> None:
    assert SCORING.sentence_scores(["(TOP XX )TOP", "(NP XX )NP"], ["(TOP (UH Yes))"] * 2) == [100.0, 0.0]
