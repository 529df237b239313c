from tests.evaluation.test_report import ATTACK, HYPOTHESES, REFERENCES, SOURCES, Page, a_report, attacked, text_of
from tests.pictures.svg import pictures_of
from transformer_core.evaluation.comparison import side_by_side
from transformer_core.evaluation.comparison_page import ComparedRun, render_comparison
from transformer_core.evaluation.report import render_sentences


def a_run(name: str, **other: str) -> ComparedRun:
    curves = {"valid/perplexity": {20: 9.0, 40: 5.0}, "valid/bleu": {20: 1.0, 40: 2.0}}
    return ComparedRun(name, f"id-of-{name}", {"train.seed": "1", **other}, {"bleu": 41.7}, curves)


def test_a_page_shows_both_runs_in_one_chart_their_significance_and_what_changed_most() -> None:
    compared = side_by_side(HYPOTHESES, REFERENCES, REFERENCES, SOURCES)
    html = render_comparison(a_run("first"), a_run("second", beam="8"), compared)
    text = text_of(html)
    for fact in (
        "A is first id-of-firstB is second id-of-second",
        f"BLEU{compared.scores[0].baseline:.2f}100.00{compared.scores[0].difference:+.2f}",
        "With fewer than 100 lines a p-value says little.",
        "Line 3 · chrF2 ",
        "beam\u20138",
        "A is better than BNo sentence.",
    ):
        assert fact in text
    assert "train.seed" not in text
    (perplexity, texts), (bleu, _) = pictures_of(html)
    assert (perplexity, bleu) == ("Perplexity of valid by update", "BLEU while training by update")
    assert texts[-2:] == ["A, at the end 5", "B, at the end 5"]
    assert "Zwei Hunde spielen im <mark>Eis.</mark>" in html


def test_trees_are_compared_without_marks() -> None:
    """A comparison of words would mark an opening bracket that is wrong, and never a closing one."""
    gold = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
    compared = side_by_side(["(S XX XX XX )S"], ["(S (NP XX XX )NP (VP XX )VP )S"], [gold], trees=True)
    html = render_comparison(a_run("first"), a_run("second"), compared)
    assert gold in html
    assert "<mark>" not in html
    assert "Marked" not in text_of(html)


def test_runs_without_curves_or_different_settings_say_so() -> None:
    one = ComparedRun("first", "1", {}, {}, {})
    html = render_comparison(one, one, side_by_side(HYPOTHESES, HYPOTHESES, REFERENCES))
    assert pictures_of(html) == []
    assert "The settings are the same." in html


def test_hostile_text_in_a_comparison_changes_no_element() -> None:
    calm = render_comparison(a_run("first"), a_run("second", beam="8"), side_by_side(HYPOTHESES, REFERENCES, REFERENCES, SOURCES))
    texts = [ATTACK] * 3
    hostile = render_comparison(a_run(ATTACK), a_run("b", **{ATTACK: ATTACK}), side_by_side(texts, REFERENCES, texts, texts))
    assert {tag for tag, _ in Page(hostile).elements} <= {tag for tag, _ in Page(calm).elements}


def test_the_page_of_sentences_has_all_of_them_with_their_scores() -> None:
    page = Page(render_sentences(a_report(), "chrF2"))
    rows = [attributes for tag, attributes in page.elements if tag == "tr"]
    assert [attributes.get("class") for attributes in rows] == [None, "exact", None, None]
    assert page.texts_of("td")[:5] == ["1", "100.0", "3", "A man rides.", "Ein Mann fährt."]


def test_hostile_text_in_the_page_of_sentences_changes_no_element() -> None:
    calm, hostile = (Page(render_sentences(report, "chrF2")) for report in (a_report(), attacked(a_report())))
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in calm.elements}
    assert hostile.all_text().count(ATTACK) == 2 + 9  # Corpus in title and heading, three texts of three sentences.
