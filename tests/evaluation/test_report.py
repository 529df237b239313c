import math
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures.svg import pictures_of
from transformer_core.evaluation.examples import GroupScore, choose_examples, scores_by_length
from transformer_core.evaluation.metrics import SCORING, score
from transformer_core.evaluation.pages import differences, duration
from transformer_core.evaluation.report import Attended, Lineage, Report, render, render_sentences
from transformer_core.evaluation.scoring import Scores
from transformer_core.pictures.attention_maps import AttentionMaps, layer_pictures
from transformer_core.sizes import architectures

ATTACK = '<script>alert(\'x\')</script><img src=https://example.org/x.png onerror="alert(1)"> & "quoted"'
VOID = {"meta", "br", "wbr", "img"}
SOURCES = ["A man rides.", "Two dogs play in the snow.", "The woman has not read the book."]
REFERENCES = ["Ein Mann fährt.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen."]
HYPOTHESES = ["Ein Mann fährt.", "Zwei Hunde spielen im Eis.", "Die Frau liest ein Buch."]
RIGHT = [True, False, False]
CURVES = ("update", "loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second")
SHARES = {share.key: 0.0 for share in SCORING.shares} | {"copied": 0.5, "over_long": 2.0}


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

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def texts_of(self, element: str) -> list[str]:
        return [text for tag, text in self.texts if tag == element]

    def all_text(self) -> str:
        return "".join(text for tag, text in self.texts if tag != "style")


def a_sentence(source: list[str], target: list[str], layers: int = 2, heads: int = 3) -> AttentionMaps:
    """Layers of heads that attend to all pieces alike."""

    def even(rows: int, columns: int) -> "np.typing.NDArray[np.float32]":
        return np.full((layers, heads, rows, columns), 1 / columns, dtype=np.float32)

    weights = {"encoder": even(len(source), len(source)), "cross": even(len(target), len(source))}
    return AttentionMaps(source, ["<s>", *target[:-1]], target, weights)


def scores_with(shares: dict[str, float], *named: str) -> dict[str, Scores]:
    """The scores of both sets, with these shares and further scores."""
    test, valid = (score(outputs, REFERENCES, "de", named) for outputs in (HYPOTHESES, REFERENCES))
    return {"test": replace(test, shares=shares), "valid": valid}


@cache
def a_report() -> Report:
    side = {"sha256": "0" * 64, "lines": 3}
    split = {"pairs": 3, "files": {"en": side, "de": side}}
    checked = {"pairs": 3, "empty": 0, "repaired": {"white_space": 1, "mojibake": 0}}
    return Report(
        manifest={
            "corpus": "tiny-corpus", "source": "en", "target": "de", "licence": "CC0",
            "splits": {"train": split, "valid": split, "test": split}, "origin": [{"split": "train", "url": "https://example.org/a"}],
        },
        cleaning={
            "pairs_in": 29_000, "dropped": {"too_long": 27, "empty": 0}, "repaired": {"white_space": 4, "mojibake": 0}, "pairs_out": 28_973,
            "lengths_in": {"en": [0, 5, 90, 5], "de": [0, 5, 95]}, "lengths_out": {"en": [0, 0, 90, 5], "de": [0, 0, 95]},
            "examples": {"too_long": [["a long one", "ein langer"]]}, "splits": {"valid": checked, "test": checked},
        },
        model={
            "model": {"architecture": "transformer", "layers": 2, "d_model": 192}, "vocabulary": {"size": 2000, "hash": "vocabulary-hash"},
            "training": {"fingerprint": "training-fingerprint", "updates": 1200, "target_tokens": 4_668_000, "seconds": 252.0},
            "averaged": 5,
        },
        parameters=3_412_992, settings={"bpe": {"vocab_size": 2000, "init_from": None}, "train": {"updates": 1200, "warmup": 400}},
        seconds={"download": None, "train": 252.0, "decode": 3.0},
        decoding={
            "engine": "torch", "beam": 4, "penalty": "wu", "alpha": 0.6, "made": "2026-01-31", "machine": "AMD EPYC",
            "valid": {"lines": 3, "seconds": 1.0, "target_tokens": 20, "tokens_per_second": 20.0},
            "test": {"lines": 3, "seconds": 1.0, "target_tokens": 21, "tokens_per_second": 21.0},
        },
        updates=[dict(zip(CURVES, (20.0 * n, 8 / n, math.exp(7 / n), 1e-4 * n, 0.5, 5000.0), strict=True)) for n in range(1, 61)],
        validation=[{"update": 200.0 * n, "perplexity": 20 / n, "source_gain": 0.5 * n, "score": 5.0 * n} for n in range(1, 7)],
        scores=scores_with(SHARES),
        by_length=scores_by_length(SCORING, SOURCES, HYPOTHESES, REFERENCES),
        examples=choose_examples(SCORING.sentence_scores(HYPOTHESES, REFERENCES), RIGHT, 3),
        sentence_scores=SCORING.sentence_scores(HYPOTHESES, REFERENCES),
        right=RIGHT, sources=SOURCES, references=REFERENCES, hypotheses=HYPOTHESES,
        attention=Attended(1, a_sentence(["▁Two", "▁dog", "s", "</s>"], ["▁Zwei", "▁Hunde", "</s>"])),
        lineage=Lineage({"git_commit": "0123456789ab", "torch": "2.13.0"}, {"device": "8 x cuda"}, {"data/raw": "raw-hash.dir"}),
    )  # fmt: skip


@cache
def the_page() -> str:
    """The report's page, with all that it can show."""
    return render(a_report(), SCORING)


def page_with(**other: Any) -> str:
    """A page with other content and, since drawing takes time, without charts and figures but those that are given."""
    few = {"updates": [], "validation": [], "cleaning": {**a_report().cleaning, "lengths_in": {}}, "attention": "None."}
    return render(replace(a_report(), **{**few, **other}), SCORING)


def attacked(report: Report) -> Report:
    """The report with a hostile text in every place that data can fill."""
    manifest = {**report.manifest, "corpus": ATTACK, "licence": ATTACK, "origin": [{"url": ATTACK}]}
    cleaning = {**report.cleaning, "examples": {"too_long": [[ATTACK, ATTACK]]}}
    run: Any = {"settings": {"download": {"corpus": ATTACK}}, "decoding": {**report.decoding, "machine": ATTACK}}
    texts: Any = {"sources": [ATTACK] * 3, "references": [ATTACK] * 3, "hypotheses": [f"x {ATTACK}"] * 3}
    attended = Attended(0, a_sentence([f"▁{tag}" for tag in ("<b>", "</svg>", "&amp;")], ["<i>", "</s>"]))
    lineage, groups = Lineage({"git_commit": ATTACK}, {"device": ATTACK}, {ATTACK: "hash"}), [GroupScore(ATTACK, 1, 1.0)]
    shown = replace(report, manifest=manifest, cleaning=cleaning, by_length=groups, attention=attended, lineage=lineage)
    return replace(shown, **run, **texts)


def test_the_page_is_one_document_that_loads_nothing_and_runs_nothing() -> None:
    page = Page(the_page())
    assert the_page().startswith('<!DOCTYPE html>\n<html lang="en">')
    assert [tag for tag, _ in page.elements].count("main") == 1
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert {value for _, attributes in page.elements for name, value in attributes.items() if name == "href"} == {"sentences.html"}
    views = {attributes["for"] for tag, attributes in page.elements if tag == "label"}  # A section comes into view without a link.
    assert views == {attributes["id"] for tag, attributes in page.elements if tag == "button"} != set()
    assert not {name for _, attributes in page.elements for name in attributes if name.startswith("on")}
    assert all(attributes.get("src", "data:").startswith("data:") for _, attributes in page.elements)
    (style,) = page.texts_of("style")
    assert not re.search(r"url\(|@import", style)
    policies = [attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_hostile_text_changes_no_element_and_is_shown_as_it_is() -> None:
    html = render(attacked(a_report()), SCORING)
    calm, hostile = Page(the_page()), Page(html)
    assert {tag for tag, _ in hostile.elements} == {tag for tag, _ in calm.elements}
    assert not {name for _, attributes in hostile.elements for name in attributes if name.startswith("on")}
    # Corpus (title, heading, table), licence, origin, group, setting, commit, output, devices, two sides of a dropped pair, the
    # machine, three of two examples and of the sentence looked at.
    assert hostile.all_text().count(ATTACK) == 13 + 6 + 3
    assert {"<b>", "</svg>", "&amp;", "·<i>"} <= {text for _, texts in pictures_of(html) for text in texts}
    calm, hostile = (Page(render_sentences(report, SCORING)) for report in (a_report(), attacked(a_report())))
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in calm.elements}
    assert hostile.all_text().count(ATTACK) == 2 + 9  # Corpus in title and heading, three texts of three sentences.


def test_the_text_of_the_page_is_that_of_the_file() -> None:
    """After a change of the page: write its text there again, and read the difference."""
    assert render(a_report(), SCORING) == the_page()
    lines = [" ".join(text.split()) for tag, text in Page(the_page()).texts if tag != "style" and text.strip()]
    text = re.sub(r"(version|sacremoses|sacrebleu):[\w.]+", r"\1:x", "\n".join(lines))
    assert text == Path(__file__).with_name("report.txt").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"decoding": {"engine": "ctranslate2", "penalty": "power"}}, "length penalty length\u03b1 with \u03b1 = 0.6, by CTranslate2."),
        ({"scores": scores_with(dict.fromkeys(SHARES, 0.0))}, "No translation of the test set is copied from the source, empty"),
        ({"attention": "This model keeps no attention weights."}, "This model keeps no attention weights."),
        ({"hypotheses": [*HYPOTHESES[:2], ""]}, "(empty)"),
        ({"decoding": {"test": {**a_report().decoding["test"], "cut_off": 2}}}, "2 outputs of test reached the maximum length"),
        ({"decoding": {"unknown": {"test": [30, 5, 1000]}}}, "test303.00%50.50%"),
        ({"updates": [], "validation": []}, "No values."),
        ({"settings": {"bpe": {"lowercase": True}}}, "The model outputs lowercase text (bpe.lowercase)."),
        ({"settings": {"train": {"init_from": "first"}}}, "It started from the weights of pretrained/first. Its weights are the mean of 5"),
        ({"settings": {"evaluate": {"allow_tokenised": True}}}, "accepted: compare only with scores on this same text."),
    ],
)
def test_the_page_says_what_is_special(other: dict[str, Any], said: str) -> None:
    if "decoding" in other:
        other = {"decoding": {**a_report().decoding, **other["decoding"]}}
    html = page_with(**other)
    text = Page(re.sub(r">\s+<", "><", html)).all_text()  # None between elements that only white space parts.
    assert said in " ".join(text.split())
    assert pictures_of(html) == []


def test_a_model_that_does_not_read_its_source_and_outputs_that_are_all_alike_are_warned_of() -> None:
    alike = {**a_report().scores, "test": replace(score(["Ein"] * 3, REFERENCES, "de"), shares=SHARES)}
    html = page_with(scores=alike, validation=[{"update": 9.0, "perplexity": 90.0, "source_gain": 0.01}])
    for warning in ("The outputs say the same again and again: 100.0%", "The model hardly reads its source: with the sources of"):
        assert f'<p class="warning wrong" role="alert"><strong>{warning}' in html
        assert warning not in the_page()


def test_every_picture_has_a_description() -> None:
    curves = ["Perplexity", "BLEU while training", "What the source gives", "Training loss", "Learning rate", "Gradient", "Speed"]
    assert [alt for alt, _ in pictures_of(the_page())] == [
        *(f"{curve} by update" for curve in curves),
        "Attention of layer 1, 3 heads", "Attention of layer 2, 3 heads",
        "Sentence lengths, en by words", "Sentence lengths, de by words",
    ]  # fmt: skip
    bars = [attributes for tag, attributes in Page(the_page()).elements if tag == "svg"]
    assert len(bars) == 2 + 2  # Two buckets of length and two stages.
    assert all(attributes["aria-label"] for attributes in bars)


def test_examples_keep_their_white_space_and_words_that_differ_are_marked_or_characters_of_text_without_spaces() -> None:
    html = the_page()
    assert "Zwei Hunde spielen im <mark>Schnee.</mark>" in html
    assert "Zwei Hunde spielen im <mark>Eis.</mark>" in html
    assert differences("猫在桌上", "狗在桌上") == [("猫", True), ("", False), ("在桌上", False)]
    assert "A  man\u00a0rides ." in page_with(sources=[*SOURCES[:2], "A  man\u00a0rides ."])


def test_durations_are_in_words() -> None:
    assert [duration(seconds) for seconds in (4.21, 250, 3599.9, 3725)] == ["4.2 s", "4 min 10 s", "1 h 00 min", "1 h 02 min"]


@given(text=st.text("ab "), other=st.text("ab "))
def test_marked_runs_joined_are_the_text(text: str, other: str) -> None:
    runs = differences(text, other)
    assert "".join(run for run, _ in runs) == text
    assert any(differs for _, differs in runs) <= (text != other)


def test_the_model_is_named_whatever_its_architecture() -> None:
    models = [{**a_report().model, "model": {**a_report().model["model"], "architecture": name}} for name in architectures()]
    named = [re.findall("A ([A-Za-z ]+) of 3,412,992", Page(page_with(model=model)).all_text())[0] for model in models]
    assert named == ["Transformer", "parser", "recurrent model", "convolutional model", "ByteNet", "changed Transformer"]


def test_layers_are_chosen_as_in_the_paper_and_a_recurrent_model_has_one_heat_map() -> None:
    six = a_sentence(["▁a", "</s>"], ["▁b", "</s>"], layers=6, heads=1)
    one = replace(six, weights={"cross": six.weights["cross"][:1]})
    chosen = [[(picture.kind, picture.layer) for picture in layer_pictures(maps)] for maps in (six, one)]
    assert chosen == [[("encoder", 5), ("cross", 6)], [("cross", 1)]]


def test_characters_that_xml_lacks_do_not_break_a_picture() -> None:
    pieces = ["\x01", "\0", "\ufffe", "\x1b[0m", "]]>", "&lt;", "🙂", "</s>"]
    for picture in layer_pictures(a_sentence(pieces, pieces)):
        ((_, texts),) = pictures_of(picture.image)
        assert {"·\ufffd", "·\ufffd[0m", "·]]>", "·&lt;", "·🙂"} <= set(texts)


def test_a_model_that_has_learnt_nothing_is_announced_in_red_and_a_corpus_with_a_count_of_its_own_has_a_tile() -> None:
    assert not any(special in the_page() for special in ('role="alert"', "Lowercased BLEU"))
    scores = scores_with(SHARES | {"copied": 0.0, "empty": 93.0, "over_long": 4.9}, "multi30k-lower")
    bad = {split: replace(found, values={**found.values, "bleu": 0.03}) for split, found in scores.items()}
    html = page_with(scores=bad)
    assert html.count('role="alert"') == 2
    assert "BLEU is near 0." in html
    assert "93.0% of the translations are empty." in html
    assert f"<b>{scores['test'].values['multi30k_lower']:.2f}</b>Lowercased BLEU" in html


def test_the_page_of_sentences_has_all_of_them_with_their_scores() -> None:
    page = Page(render_sentences(a_report(), SCORING))
    rows = [attributes for tag, attributes in page.elements if tag == "tr"]
    assert [attributes.get("class") for attributes in rows] == [None, "exact", None, None]
    assert page.texts_of("td")[:5] == ["1", "100.0", "3", "A man rides.", "Ein Mann fährt."]


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FRAME = """<!DOCTYPE html><iframe src="report.html" width="{width}" height="800" style="border: 0"></iframe>
<script>onload = () => {{ document.body.append("widest: " + frames[0].document.documentElement.scrollWidth) }}</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with")
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_is_no_wider_than_the_window(width: int, tmp_path: Path) -> None:
    """Also with texts that have no place to break; Chromium logs no error."""
    long = "Donau" * 60
    pieces = [f"▁{long}", *"bcdefghijklmnopqrstuvw", "</s>"]
    texts: Any = {"sources": [long] * 3, "hypotheses": [long, "שלום עולם", ""], "settings": {"train": {long: long}}}
    named, attended = {**a_report().manifest, "corpus": long}, Attended(0, a_sentence(pieces, pieces))
    report = replace(a_report(), manifest=named, by_length=[GroupScore(long, 1, 0.0)], attention=attended, **texts)
    (tmp_path / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [str(CHROMIUM), *options, (tmp_path / "frame.html").as_uri()]
    for html in (render(report, SCORING), render_sentences(report, SCORING)):
        (tmp_path / "report.html").write_text(html, encoding="utf-8")
        seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in seen.stderr
        assert f"widest: {width}<" in seen.stdout


def test_lengths_of_text_without_spaces_are_in_characters() -> None:
    report = replace(a_report(), sources=["私は海を見たことがありません。"] * len(SOURCES))
    html = render(report, SCORING)
    assert "Training sentences by their characters" in html
    assert "Training sentences by their words" in html  # The target's.
    assert all(">Characters</th>" in page for page in (html, render_sentences(report, SCORING)))
