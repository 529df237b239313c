import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_core.evaluation.metrics import GroupScore, bleu_by_length, choose_examples, score
from transformer_core.evaluation.report import (
    Axis,
    Report,
    differences,
    duration,
    length_charts,
    line_chart,
    render,
    short,
    training_charts,
)

ATTACK = '<script>alert(\'x\')</script><img src=https://example.org/x.png onerror="alert(1)"> & "quoted"'
VOID = {"meta", "br", "wbr"}
SOURCES = ["A man rides.", "Two dogs play in the snow.", "The woman has not read the book."]
REFERENCES = ["Ein Mann fährt.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen."]
HYPOTHESES = ["Ein Mann fährt.", "Zwei Hunde spielen im Eis.", "Die Frau liest ein Buch."]


class Page(HTMLParser):
    """A page taken apart: elements with their attributes, text with its element; fails where tags are not balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def text_of(self, element: str) -> str:
        return "".join(text for tag, text in self.texts if tag == element)

    def all_text(self) -> str:
        return "".join(text for tag, text in self.texts if tag != "style")


def a_report(synthetic: bool = False) -> Report:
    side = {"sha256": "0" * 64, "lines": 3}
    split = {"pairs": 3, "files": {"en": side, "de": side}}
    checked = {"pairs": 3, "empty": 0, "repaired": {"white_space": 1}}
    return Report(
        manifest={
            "corpus": "tiny-corpus", "source": "en", "target": "de", "licence": "CC0", "synthetic": synthetic, "held_out": {},
            "splits": {"train": split, "valid": split, "test": split}, "origin": [{"split": "train", "url": "https://example.org/a"}],
        },
        cleaning={
            "pairs_in": 29_000, "dropped": {"too_long": 27}, "repaired": {"white_space": 4}, "pairs_out": 28_973,
            "entities": 12, "lengths_in": {"en": [0, 5, 90, 5], "de": [0, 5, 95]}, "lengths_out": {"en": [0, 0, 90, 5], "de": [0, 0, 95]},
            "examples": {"too_long": [["a long one", "ein langer"]]}, "splits": {"valid": checked, "test": checked},
        },
        model={
            "model": {"architecture": "transformer", "layers": 2, "d_model": 192}, "vocabulary": {"size": 2000, "hash": "vocabulary-hash"},
            "training": {"fingerprint": "training-fingerprint", "updates": 1200, "target_tokens": 4_668_000, "seconds": 252.0},
            "averaged": 5,
        },
        parameters=3_412_992,
        training={"updates": 1200, "warmup": 400},
        decoding={
            "engine": "torch", "beam": 4, "penalty": "wu", "alpha": 0.6,
            "valid": {"lines": 3, "seconds": 1.0, "target_tokens": 20, "tokens_per_second": 20.0},
            "test": {"lines": 3, "seconds": 1.0, "target_tokens": 21, "tokens_per_second": 21.0},
        },
        updates=[
            {"update": 20.0 * n, "loss": 8 / n, "perplexity": math.exp(7 / n), "learning_rate": 1e-4 * n, "tokens_per_second": 5000.0}
            for n in range(1, 61)
        ],
        validation=[{"update": 200.0 * n, "perplexity": 20 / n} for n in range(1, 7)],
        scores={"test": score(HYPOTHESES, REFERENCES, "de"), "valid": score(REFERENCES, REFERENCES, "de")},
        by_length=bleu_by_length(SOURCES, HYPOTHESES, REFERENCES),
        by_phenomenon=[GroupScore("verb-last", 2, 71.5)],
        examples=choose_examples(HYPOTHESES, REFERENCES, 3),
        sources=SOURCES,
        references=REFERENCES,
        hypotheses=HYPOTHESES,
        commit="0123456789ab",
    )  # fmt: skip


def attacked(report: Report) -> Report:
    """The report with a hostile text in every place that data can fill."""
    manifest = {**report.manifest, "corpus": ATTACK, "licence": ATTACK, "origin": [{"url": ATTACK}]}
    cleaning = {**report.cleaning, "examples": {"too_long": [[ATTACK, ATTACK]]}}
    return replace(
        report,
        manifest=manifest,
        cleaning=cleaning,
        by_phenomenon=[GroupScore(ATTACK, 1, 1.0)],
        sources=[ATTACK] * 3,
        references=[ATTACK] * 3,
        hypotheses=[f"x {ATTACK}"] * 3,
        commit=ATTACK,
    )


@pytest.mark.parametrize("synthetic", [False, True])
def test_the_page_is_one_balanced_document(synthetic: bool) -> None:
    html = render(a_report(synthetic))
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert [tag for tag, _ in Page(html).elements].count("main") == 1


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = Page(render(a_report()))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert all(str(value).startswith("#") for _, attributes in page.elements for name, value in attributes.items() if name == "href")
    assert not {name for _, attributes in page.elements for name in attributes if name == "src" or name.startswith("on")}
    assert "url(" not in page.text_of("style")
    assert "@import" not in page.text_of("style")
    policies = [attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_hostile_text_changes_no_element_and_is_shown_as_it_is() -> None:
    calm, hostile = Page(render(a_report())), Page(render(attacked(a_report())))
    assert {tag for tag, _ in hostile.elements} == {tag for tag, _ in calm.elements}
    assert not {name for _, attributes in hostile.elements for name in attributes if name.startswith("on")}
    # Corpus (title, heading, table), licence, origin, commit, phenomenon, two sides of a dropped pair, three sides of three examples.
    assert hostile.all_text().count(ATTACK) == 9 + 9


def test_the_same_report_gives_the_same_bytes() -> None:
    assert render(a_report()) == render(a_report())


def test_a_synthetic_corpus_is_named_so_wherever_a_score_stands() -> None:
    page = Page(render(a_report(synthetic=True)))
    assert "(synthetic)" in page.text_of("title")
    assert "they say nothing about the translation of real text" in page.all_text()
    sections = render(a_report(synthetic=True)).split("<section ")
    headings = {section.split('"')[1]: "SYNTHETIC" in section.split("</h2>")[0] for section in sections[1:]}
    assert {"scores", "groups", "examples", "data"} == {name for name, labelled in headings.items() if labelled}


def test_a_real_corpus_is_not_called_synthetic() -> None:
    assert "synthetic" not in Page(render(a_report())).all_text().lower()


def test_the_page_says_what_was_trained_on_what_and_how_it_scores() -> None:
    report = a_report()
    text = " ".join(Page(render(report)).all_text().split())
    for fact in (
        "Translation en → de, trained on tiny-corpus",
        "A Transformer of 3,412,992 parameters learnt from 28,973 sentence pairs in 1,200 updates (4,668,000 target tokens, 4 min 12 s)",
        "Its last 5 checkpoints were averaged.",
        f"{report.scores['test'].bleu:.2f}",
        report.scores["test"].bleu_signature,
        "dropped: too long270.09%",
        "training-fingerprint",
        "vocabulary-hash",
        "git 0123456789ab",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("decoding", "words"),
    [
        ({"engine": "torch", "penalty": "wu"}, "length penalty ((5 + length) / 6)\u03b1 with \u03b1 = 0.6."),
        ({"engine": "ctranslate2", "penalty": "power"}, "length penalty length\u03b1 with \u03b1 = 0.6, by CTranslate2."),
    ],
)
def test_the_page_says_how_it_was_translated(decoding: dict[str, str], words: str) -> None:
    report = replace(a_report(), decoding={**a_report().decoding, **decoding})
    assert words in " ".join(Page(render(report)).all_text().split())


def test_the_lengths_of_a_language_are_drawn_before_and_after_cleaning_without_the_few_longest() -> None:
    before, after = [0] * 201, [0] * 201
    before[3:6], before[200] = [100, 600, 299], 1
    after[3:6] = [100, 500, 299]
    (chart,) = length_charts({"lengths_in": {"de": before}, "lengths_out": {"de": after}})
    assert [line.in_words for line in chart.lines] == ["before cleaning, most often 4 words", "after, most often 4 words"]
    assert [len(line.dots) for line in chart.lines] == [6, 6]
    highest, lower = (min(y for _, y, _ in line.dots) for line in chart.lines)
    assert highest < lower


def test_every_chart_says_in_words_what_it_shows() -> None:
    html = render(a_report())
    charts = [part.split("</svg>")[0] for part in html.split("<svg")[1:] if 'role="img"' in part.split(">")[0]]
    assert len(charts) == 4 + 2 + 1 + 1  # curves, lengths of two languages, a bar for the bucket of length, a bar for the phenomenon
    assert all("aria-label=" in chart and "<title>" in chart for chart in charts)
    assert "<title>Perplexity by update: training, at the end 1.124; validation, at the end 3.333</title>" in html


def test_without_labels_there_is_no_table_of_phenomena() -> None:
    assert "BLEU by phenomenon" in render(a_report())
    assert "BLEU by phenomenon" not in render(replace(a_report(), by_phenomenon=[]))


def test_white_space_of_an_example_is_kept() -> None:
    assert "A  man\u00a0rides ." in render(replace(a_report(), sources=["A  man\u00a0rides .", *SOURCES[1:]]))


def test_marked_are_the_words_in_which_translation_and_reference_differ() -> None:
    html = render(a_report())
    assert "Zwei Hunde spielen im <mark>Schnee.</mark>" in html
    assert "Zwei Hunde spielen im <mark>Eis.</mark>" in html


@given(text=st.text("ab "), other=st.text("ab "))
def test_marked_runs_joined_are_the_text(text: str, other: str) -> None:
    assert " ".join(run for run, _ in differences(text, other)) == text
    assert any(differs for _, differs in differences(text, other)) <= (text != other)


def test_a_training_that_diverged_is_drawn_as_far_as_it_can_be() -> None:
    values = [9.0, math.inf, math.nan, 0.0, 3.0]
    chart = line_chart("Perplexity", "", {"training": [(20.0 * n, value) for n, value in enumerate(values, 1)]}, logarithmic=True)
    assert [label for _, _, label in chart.lines[0].dots] == ["update 20: 9", "update 100: 3"]


def test_a_training_without_records_has_charts_without_lines() -> None:
    charts = training_charts([], [])
    assert [chart.lines for chart in charts] == [[], [], [], []]
    assert "No values." in render(replace(a_report(), updates=[], validation=[]))


def test_a_single_validation_is_a_dot() -> None:
    chart = line_chart("Accuracy", "", {"validation": [(200, 0.5)]})
    assert [(round(x), label) for x, _, label in chart.lines[0].dots] == [(350, "update 200: 0.5")]


def test_a_long_training_is_drawn_with_few_places_and_without_dots() -> None:
    chart = line_chart("Loss", "", {"loss": [(float(update), 1.0) for update in range(1, 100_001)]})
    assert chart.lines[0].path.count("L") < 240
    assert chart.lines[0].dots == []


@example(low=1.0, factor=1.0000000000000002, logarithmic=False)  # one rounding step apart
@given(low=st.floats(1e-6, 1e6), factor=st.floats(1, 1e9), logarithmic=st.booleans())
def test_ticks_lie_on_the_axis_and_are_neither_none_nor_many(low: float, factor: float, logarithmic: bool) -> None:
    ticks = Axis(low, low * factor, 0, 100, logarithmic).ticks()
    assert all(-1e-6 <= tick.at <= 100 + 1e-6 for tick in ticks)
    assert (1 if factor > 2 else 0) <= len(ticks) <= 10


@pytest.mark.parametrize(
    ("value", "label"), [(0.0007, "0.0007"), (250.0, "250"), (1200.0, "1,200"), (40_000.0, "40k"), (1.5e6, "1.5M"), (0.1 + 0.2, "0.3")]
)
def test_numbers_on_axes_are_short(value: float, label: str) -> None:
    assert short(value) == label


@pytest.mark.parametrize(("seconds", "text"), [(4.21, "4.2 s"), (250, "4 min 10 s"), (3599.9, "1 h 00 min"), (3725, "1 h 02 min")])
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
