"""Glossaries."""

from pathlib import Path

import pytest

from tests.models.on_disk import TEXT, translations, write_drawn
from tests.refusals import refused
from transformer_core.corpus.placeholders import SYMBOLS
from transformer_core.corpus.text import read_lines
from transformer_core.decoding.beam import Search
from transformer_core.decoding.glossary import Glossary, glossary_of
from transformer_core.decoding.lines import LineReader
from transformer_core.decoding.translator import Hypothesis, Translator

SEARCH = Search(beam=3, max_extra=8)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """A model of random weights, whose vocabulary is learnt from a few sentences about dogs and cats."""
    return Translator.load(write_drawn(tmp_path_factory.mktemp("model") / "drawn"), precision="float64")


def translated(translator: Translator, glossary: Glossary, lines: list[str], search: Search = SEARCH) -> list[list[Hypothesis]]:
    return glossary.translate(translator, [translator.subword.encode(line) for line in lines], search, 4096)


def test_terms_are_whole_words_the_longest_first_and_one_in_lower_case_is_found_with_capitals() -> None:
    glossary = Glossary({"bank": "Ufer", "data bank": "Datenbank", "US": "USA", "C++": "C++", "銀行": "Bank"})
    assert glossary.wanted("the bank, a Bank.") == ["Ufer"]
    assert glossary.wanted("Bank of a data bank") == ["Ufer", "Datenbank"]
    assert glossary.wanted("(US) C++ us") == ["USA", "C++"]
    assert glossary.wanted("banks, databank and US-based") == ["USA"]
    assert glossary.wanted("あの銀行はUSです") == ["Bank", "USA"]


def test_each_translation_has_the_wanted_words_and_one_without_terms_stays(translator: Translator) -> None:
    lines = ["the dog sees a cat", "the house", "", "a cat sees the dog", "the house sees a cat"]
    glossary = Glossary({"dog": "Hund", "cat": "Katze sieht"})
    plain = translations(translator, lines, SEARCH)
    found = translated(translator, glossary, lines)
    assert [found[1], found[2]] == [plain[1], plain[2]]
    for number in (0, 3, 4):
        best = found[number][0].text
        assert best != plain[number][0].text
        assert all(f" {word} " in f" {best} " for word in ("Katze sieht", "Hund")[: 1 + (number < 4)])
        assert len({hypothesis.text for hypothesis in found[number]}) == len(found[number]) <= SEARCH.beam
    assert [translated(translator, glossary, [line])[0][0].text for line in lines] == [hypotheses[0].text for hypotheses in found]


def test_the_place_of_a_wanted_word_is_that_of_the_best_score(translator: Translator) -> None:
    (found,) = translated(translator, Glossary({"dog": "Hund"}), ["the dog sees a cat"])
    begun = [text.text for text in translations(translator, ["the dog sees a cat"], SEARCH)[0]]
    beginnings = {f"{' '.join(text.split()[:words])} Hund".strip() for text in begun for words in range(len(text.split()) + 1)}
    again = translations(translator, ["the dog sees a cat"] * len(beginnings), SEARCH, prefixes=sorted(beginnings))
    with_it = [hypothesis for hypotheses in again for hypothesis in hypotheses if "Hund" in hypothesis.text.split()]
    assert found[0].score == pytest.approx(max(hypothesis.score for hypothesis in with_it), abs=1e-9)


def test_a_model_in_lower_case_has_the_terms_in_lower_case(tmp_path: Path) -> None:
    translator = Translator.load(write_drawn(tmp_path / "drawn", lowercase=True), precision="float64")
    assert " haus " in f" {translated(translator, Glossary({'HOUSE': 'Haus'}), ['the house sees'])[0][0].text} "


def test_terms_are_as_the_vocabulary_reads_and_writes_them_and_may_have_placeholders(tmp_path: Path) -> None:
    text = [*TEXT, "'25'", *SYMBOLS]
    directory = write_drawn(tmp_path / "drawn", seed=2, vocab_size=60, text=text, normalise=["quotes"], user_symbols=[*SYMBOLS])
    translator = Translator.load(directory, precision="float64")
    glossary = Glossary({"dog\u2019s cat": "Hund\u2019s Haus", "house 25": "Haus 25"})
    line = LineReader(translator.subword, "en", 50).read("the dog\u2019s cat sees house 25")
    (found,) = glossary.translate(translator, line.parts, SEARCH, 4096, strings=line.strings)
    assert all(term in line.joined([found])[0].text for term in ("Hund's Haus", "Haus 25"))
    with refused(65, "glossary: Łdź: the model has no Ł ź"):
        translated(translator, Glossary({"dog": "Łdź", "cat": "Haus"}), ["the cat"])


@pytest.mark.parametrize("line", ["bank", "bank\t", "\tUfer", "bank\tUfer\tRiver", ""])
def test_a_line_that_is_no_term_with_a_translation_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"river\tFluss\n{line}\n", encoding="utf-8")
    with refused(65, f"{path}:2: not a term, a tab and its translation"):
        glossary_of(read_lines(path), str(path))
