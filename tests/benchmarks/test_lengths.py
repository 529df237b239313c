"""Scores by length of the benchmark of sentences longer than those trained on."""

from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from benchmarks.lengths import FORMS, TRAINED_WORDS, draw, group_of, score_tables, scores, write_settings
from transformer_core.config import Params, validate_document
from transformer_core.presets import resolve
from transformer_core.synthetic.stream import generate


def sentence(words: int) -> str:
    return " ".join(f"w{number}" for number in range(words))


@pytest.fixture
def table() -> pd.DataFrame:
    """Eight sentences; a model that translates those of the trained lengths and gives half of the others."""
    lengths = [5, 6, 7, TRAINED_WORDS, TRAINED_WORDS + 1, 16, 41, 60]
    texts = [sentence(words) for words in lengths]
    outputs = [text if words <= TRAINED_WORDS else sentence(words // 2) for text, words in zip(texts, lengths, strict=True)]
    return scores("a", texts, outputs, texts)


def test_sentences_are_scored_by_the_words_of_their_source(table: pd.DataFrame) -> None:
    assert table["source_words"].tolist() == ["1-6", "7-12", "13-16", "41-60"]
    assert table["sentences"].tolist() == [2, 2, 2, 2]
    assert table["beyond"].tolist() == [False, False, True, True]


def test_scores_are_those_of_a_group_alone(table: pd.DataFrame) -> None:
    perfect = table[~table["beyond"]]
    assert perfect["bleu"].tolist() == pytest.approx([100, 100])
    assert perfect["chrf"].tolist() == pytest.approx([100, 100])
    # 6 + 8 of 13 + 16 words, and 20 + 30 of 41 + 60; what is there is right, so that BLEU is the brevity penalty alone.
    assert table["length_ratio"].tolist()[2:] == pytest.approx([14 / 29, 50 / 101])
    assert (table["bleu"][2:] < 50).all()
    assert ((table["bleu_low"] <= table["bleu"] + 1e-9) & (table["bleu"] <= table["bleu_high"] + 1e-9)).all()


def test_no_group_mixes_lengths_trained_on_with_longer_ones() -> None:
    assert group_of(sentence(TRAINED_WORDS)) < group_of(sentence(TRAINED_WORDS + 1))
    with pytest.raises(ValueError, match="a source of 61 words, but the longest group ends at 60"):
        group_of(sentence(61))


def test_the_table_has_a_row_a_form_and_a_column_a_group(table: pd.DataFrame) -> None:
    other = table.assign(form="b", bleu=12.34)
    bleu, chrf, ratio = score_tables(pd.concat([table, other])).split("\n\n")
    head, _, *rows = bleu.splitlines()
    assert head == "| bleu | 1-6 (2) | 7-12 (2) | 13-16 (2) | 41-60 (2) |"
    assert rows[1] == "| b | 12.3 | 12.3 | 12.3 | 12.3 |"
    assert chrf.startswith("| chrf |")
    assert ratio.splitlines()[2] == "| a | 1.00 | 1.00 | 0.48 | 0.50 |"


def test_the_plot_is_the_same_file_each_time_and_names_the_forms(table: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(table, tmp_path / name)
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert "lengths trained on" in text


def test_the_settings_of_every_form_are_valid_and_differ_in_positions_or_lengths_alone(tmp_path: Path) -> None:
    sections = []
    for form in FORMS:
        write_settings(form, tmp_path, updates=800)
        params = validate_document(Params, YAML(typ="safe").load(tmp_path / "params.yaml"), "params.yaml")
        assert (params.model.positions, params.clean.max_words) == (form.positions, form.words)
        resolve(params.model)
        sections.append(params.model_dump(exclude={"model": {"positions"}, "clean": {"max_words"}}))
    assert all(section == sections[0] for section in sections)


def test_nearly_half_of_the_generated_sentences_are_longer_than_those_trained_on() -> None:
    lengths = [group_of(pair.source) for pair in generate("test", 500, seed=1, workers=1)]
    assert 0.3 < sum(group >= group_of(sentence(TRAINED_WORDS + 1)) for group in lengths) / 500 < 0.6
