"""Long lines in parts, and what is said of the lines that were read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import TEXT, write_drawn
from transformer_core.corpus.placeholders import SYMBOLS
from transformer_core.corpus.text import Pair, normalise
from transformer_core.corpus.tokens.encoding import encoded
from transformer_core.corpus.tokens.subword import EOS, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.lines import Line, LineReader, most_tokens
from transformer_core.decoding.translator import Hypothesis, Translator
from transformer_core.models.directory import read_config

# Learnt from every character that the tests use, so that decoding the parts gives back the text.
CHARACTERS = "abcdefgh.,;:!?()\"'-はい。、ア"
MOST = 8
LINES = [" ".join(CHARACTERS), *(["abc def gh."] * 9)]


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    return learnt_subword(LINES, tmp_path_factory.mktemp("lines") / "spm.model", vocab_size=48)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    """A vocabulary that knows all characters."""
    return learnt_subword(LINES, tmp_path_factory.mktemp("bytes") / "spm.model", vocab_size=304, byte_fallback=True)


def parts_of(subword: Subword, text: str, most: int = MOST, language: str = "en") -> list[str]:
    return [subword.decode(part) for part in LineReader(subword, language, most).read(text).parts]


def hypothesis(text: str, score: float = -1.0, tokens: int = 1) -> Hypothesis:
    return Hypothesis(text, score, 2 * score, tokens)


def test_a_long_line_is_parted_between_sentences_then_clauses_then_words_then_characters(subword: Subword) -> None:
    assert parts_of(subword, "Abc. Def", most=99) == [subword.decode(subword.encode("Abc. Def"))]
    assert parts_of(subword, "a b c d. e f g h? a b", most=9) == ["a b c d.", "e f g h?", "a b"]
    assert parts_of(subword, "a b c, d e f g") == ["a b c,", "d e f g"]
    assert parts_of(subword, "a b c d e f") == ["a b c", "d e f"]
    assert parts_of(subword, "hhhhhhhhhhhh") == ["hhhhhh", "hhhhhh"]
    assert parts_of(subword, "はいはい、ははは。アアア。", most=10, language="ja") == ["はいはい、ははは。", "アアア。"]
    assert parts_of(subword, "はいはい、ははは。", language="ja") == ["はいはい、", "ははは。"]


@given(text=st.text(CHARACTERS + " \n\u2028", max_size=120) | st.text(max_size=60), language=st.sampled_from(["en", "de-AT", "ja", "x"]))
def test_no_character_of_a_line_is_lost_and_no_part_is_too_long(of_bytes: Subword, text: str, language: str) -> None:
    line = LineReader(of_bytes, language, MOST).read(text)
    assert all(len(part) - 1 <= MOST for part in line.parts if len(of_bytes.decode(part)) > 1)
    wanted = [normalise(part).replace("\u2581", "_") for part in text.split("\n")]
    assert "".join("".join(map(of_bytes.decode, line.parts)).split()) == "".join("".join(wanted).split())
    joined = line.joined([[hypothesis(of_bytes.decode(part))] for part in line.parts])[0].text
    assert joined.count("\n") == text.count("\n")
    if len(line.parts) == len(wanted):
        assert joined == "\n".join(wanted)


def test_the_translations_of_the_parts_come_together_with_their_line_feeds_and_spaces() -> None:
    line = Line([[EOS]] * 4, [False, False, True, True], [[]] * 4)
    (best,) = line.joined([[hypothesis(text)] for text in ("One.", "Two.", "", "Three.")])
    assert (best.text, best.log_probability, best.tokens) == ("One. Two.\n\nThree.", -8.0, 4)
    line = Line([[EOS]] * 2, [False, False], [[]] * 2)
    ranked = line.joined([[hypothesis("a"), hypothesis("b", -3.0)], [hypothesis("c", -2.0)]])
    assert [(one.text, one.score) for one in ranked] == [("a c", -1.5), ("b c", -2.5)]
    (japanese,) = line.joined([[hypothesis("これはペンです。")], [hypothesis("はい。")]])
    assert japanese.text == "これはペンです。はい。"  # Japanese has no spaces between sentences.
    assert line.joined([[hypothesis("")], [hypothesis("c")]])[0].text == "c"


def test_the_translation_of_a_long_line_does_not_depend_on_the_other_lines(tmp_path: Path) -> None:
    translator = Translator.load(write_drawn(tmp_path / "model"), precision="float64")
    long = " ".join(TEXT)

    def translated(lines: list[str]) -> list[str]:
        reader = LineReader(translator.subword, "en", 20)
        read = [reader.read(line) for line in lines]
        found = iter(translator.translate_tokens([part for line in read for part in line.parts], Search(2, max_extra=5), 40))
        return [line.joined([next(found) for _ in line.parts])[0].text for line in read]

    (alone,) = translated([long])
    assert translated([TEXT[0], long, TEXT[1] * 5, long])[1::2] == [alone, alone]


def test_the_limit_is_the_longest_source_of_the_training_and_never_more_than_the_positions(tmp_path: Path) -> None:
    config = read_config(write_drawn(tmp_path / "model") / "config.json")
    trained = config.model_copy(update={"longest_source": 30})
    assert [most_tokens(config, None), most_tokens(trained, None), most_tokens(trained, 20)] == [1024, 30, 19]
    assert [most_tokens(trained, None, 50), most_tokens(trained, 20, 50)] == [50, 19]
    assert most_tokens(trained.model_copy(update={"target": "tree"}), None) == 1024


def test_the_notes_name_the_first_lines_and_the_most_frequent_characters(subword: Subword) -> None:
    reader = LineReader(subword, "en", MOST)
    assert list(reader.notes()) == []
    for text in ("a", "x\u200dy", "xyz XYZ", "a b. a b c d e f g h"):
        reader.read(text)
    long, unknown = reader.notes()
    parted = "lines of more than 8 tokens, translated sentence by sentence: 1 of 4, the first is line 4"
    assert long == f"{parted}; a sentence was cut in 1 of 4, the first is line 4"
    assert unknown == (
        "lines with unknown characters, which are left out: 2 of 4, the first is line 2: x (U+0078) in 2, y (U+0079) in 2, "
        "U+200D in 1, X (U+0058) in 1, Y (U+0059) in 1 and 2 others. Replace them, or train with bpe.byte_fallback: true."
    )


def test_strings_are_read_as_placeholders_and_put_back_in_each_part(tmp_path: Path) -> None:
    lines = [" ".join([*CHARACTERS, "H", *SYMBOLS]), *LINES[1:]]
    subword = learnt_subword(lines, tmp_path / "spm.model", vocab_size=58, user_symbols=[*SYMBOLS])
    reader = LineReader(subword, "en", 16)
    line = reader.read("a <b>b</b> def gh. He 😀 de {h}.")
    assert [subword.decode(part) for part in line.parts] == ["a ⟦1⟧b⟦2⟧ def gh.", "He ⟦1⟧ de ⟦2⟧."]
    (joined,) = line.joined([[hypothesis("⟦1⟧h⟦2⟧")], [hypothesis("⟦2⟧ de ⟦1⟧ ⟦3⟧")]])
    assert joined.text == "<b>h</b> {h} de 😀 "
    (long,) = reader.notes()
    assert "unknown" not in long
    assert reader.read("a b").joined([[hypothesis("a⟦1⟧ b")]])[0].text == "a b"  # A symbol of no string.
    masked = subword.encode("a ⟦1⟧ b ⟦2⟧"), subword.encode("b ⟦2⟧ {d}")
    assert encoded(Pair("a {h} b <b>", "b <b> {d}"), subword) == masked != (subword.encode("a {h} b <b>"), subword.encode("b <b> {d}"))
