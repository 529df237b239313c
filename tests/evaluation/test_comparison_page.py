import re
from base64 import b64encode
from hashlib import sha256

from tests.evaluation.test_report import ATTACK, HYPOTHESES, REFERENCES, SOURCES, Page, a_report, attacked, text_of
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
        "A, at the end 5 B, at the end 5",
        f"BLEU{compared.scores[0].baseline:.2f}100.00{compared.scores[0].difference:+.2f}",
        "With fewer than 100 lines a p-value says little.",
        "Line 3 · chrF2 ",
        "beam\u20138",
        "A is better than BNo sentence.",
    ):
        assert fact in text
    assert "train.seed" not in text
    assert [part.split("<")[0] for part in html.split("<figcaption>")[1:]] == ["Perplexity of valid ", "BLEU while training "]
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
    assert "<svg" not in html
    assert "The settings are the same." in html


def test_hostile_text_in_a_comparison_changes_no_element() -> None:
    calm = render_comparison(a_run("first"), a_run("second", beam="8"), side_by_side(HYPOTHESES, REFERENCES, REFERENCES, SOURCES))
    texts = [ATTACK] * 3
    hostile = render_comparison(a_run(ATTACK), a_run("b", **{ATTACK: ATTACK}), side_by_side(texts, REFERENCES, texts, texts))
    assert {tag for tag, _ in Page(hostile).elements} <= {tag for tag, _ in Page(calm).elements}


def test_the_page_of_sentences_has_all_of_them_with_their_scores_and_labels() -> None:
    page = Page(render_sentences(a_report(), "chrF2"))
    rows = [attributes for tag, attributes in page.elements if tag == "tr"]
    assert len(rows) == 1 + 3
    assert [attributes.get("class") for attributes in rows] == [None, "exact", None, None]
    assert {"Ein Mann fährt.", "verb-last negation"} <= set(page.texts_of("td") + page.texts_of("small"))


def test_the_page_of_sentences_runs_its_own_script_alone_whatever_the_text() -> None:
    html = render_sentences(attacked(a_report()), "chrF2")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    page = Page(html)
    policies = [attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in Page(render_sentences(a_report(), "chrF2")).elements}
    assert page.all_text().count(ATTACK) == 2 + 9  # Corpus in title and heading, three texts of three sentences.
