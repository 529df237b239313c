import io
import unicodedata
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.encoded import BPE, learnt_subword
from tests.refusals import refused
from transformer_core.corpus.text import normalise
from transformer_core.corpus.tokens.subword import EOS, PAD, UNK, Subword, sampled, train_subword
from transformer_core.files import sha256_of

ALPHABET = "abcdefghijklmnopqrstuvwxyzäöüßABC0123456789.,!?-é"
SENTENCES = [
    *(f"The {noun} sees {number} {noun}s, and the {noun} is glad." for noun in ("dog", "cat", "horse", "bird") for number in range(20)),
    *(f"Der {noun} sieht {number} davon, und der {noun} ist froh." for noun in ("Hund", "Kater", "Vogel") for number in range(20)),
    " ".join(ALPHABET),
]
settings = BPE.model_copy(update={"vocab_size": 180})


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    return learnt_subword(SENTENCES, tmp_path_factory.mktemp("subword") / "spm.model", vocab_size=180)


@given(text=st.text(alphabet=ALPHABET + " \t\xa0\u200b\u0308"))
def test_decoding_gives_back_the_normalised_text(subword: Subword, text: str) -> None:
    # Letters of the training text only: any other becomes unk. A lone U+0308 is such a one.
    learnt = "".join(character for character in normalise(text) if character in ALPHABET + " ")
    assert subword.decode(subword.encode(learnt)) == normalise(learnt)


def test_a_text_is_encoded_as_its_normalised_form(subword: Subword) -> None:
    assert subword.encode("  the\u00a0dog\u200b sa\u0308gt\u2028") == subword.encode("the dog sägt")


def test_a_text_is_its_tokens_and_eos_and_unk_where_a_character_was_never_seen(subword: Subword) -> None:
    assert subword.encode("") == [EOS]
    ids = subword.encode("the dog")
    assert ids[-1] == EOS
    assert subword.decode([PAD, *ids, *subword.encode("and more"), PAD]) == "the dog"
    assert subword.decode(ids[:-1]) == "the dog"
    assert UNK in subword.encode("dog 犬")
    # The space mark of SentencePiece in a text does not become a space.
    assert subword.encode("a\u2581b") == subword.encode("a_b")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_model_depends_on_text_and_settings_alone_and_knows_whether_it_is_bpe(tmp_path: Path, kind: str) -> None:
    wanted = settings.model_copy(update={"type": kind, "vocab_size": 70})
    for name in ("one", "other"):
        train_subword(iter(SENTENCES), tmp_path / name / f"{name}.model", wanted)
    assert (tmp_path / "one/one.model").read_bytes() == (tmp_path / "other/other.model").read_bytes()
    subword = Subword.load(tmp_path / "one/one.model")
    assert (subword.is_bpe, subword.hash) == (kind == "bpe", sha256_of(tmp_path / "one/one.model"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_that_is_too_large_is_told_with_the_largest_that_works(tmp_path: Path, kind: str) -> None:
    with refused(78, r"bpe\.vocab_size: this corpus allows at most (\d+), got 9000") as caught:
        train_subword(SENTENCES, tmp_path / "spm.model", settings.model_copy(update={"vocab_size": 9000, "type": kind}))
    assert list(tmp_path.iterdir()) == []
    largest = int(caught.value.message.split("at most ")[1].split(",")[0])
    assert learnt_subword(SENTENCES, tmp_path / "spm.model", vocab_size=largest, type=kind).vocab_size == largest


def test_a_vocabulary_smaller_than_the_alphabet_and_no_text_at_all_are_told(tmp_path: Path) -> None:
    with refused(78, r"bpe\.vocab_size: .* at least \d+, got 17"):
        train_subword(SENTENCES, tmp_path / "spm.model", settings.model_copy(update={"vocab_size": 17, "type": "bpe"}))
    with refused(65, "training text for the subword model is empty"):
        train_subword(["", " "], tmp_path / "spm.model", settings)


def test_a_very_long_line_is_learnt_from_too(tmp_path: Path) -> None:
    # SentencePiece's own limit, 4,192 bytes, would leave the line out without a word.
    assert UNK not in learnt_subword([*SENTENCES, "ж " * 4000], tmp_path / "spm.model", vocab_size=180).encode("ж")


def test_what_is_no_model_is_told(tmp_path: Path, subword: Subword) -> None:
    file, model = tmp_path / "spm.model", subword.processor.serialized_model_proto()
    with refused(65, "spm.model: no such file"):
        Subword.load(file)
    not_utf8 = model.replace("ß".encode(), b"\xc3(")
    assert not_utf8 != model
    for content in (b"", b"no model", not_utf8):
        file.write_bytes(content)
        with refused(65, "spm.model: not a SentencePiece model"):
            Subword.load(file)


def test_decoding_gives_one_line_without_control_characters(tmp_path: Path) -> None:
    """Also of a piece with a line feed, which only somebody else's vocabulary has."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, model_type="bpe", vocab_size=180, minloglevel=2,
        pad_id=0, unk_id=1, bos_id=2, eos_id=3, normalization_rule_name="identity", user_defined_symbols=["up\ndown"],
    )  # fmt: skip
    (tmp_path / "spm.model").write_bytes(model.getvalue())
    subword = Subword.load(tmp_path / "spm.model")
    token = subword.pieces.index
    assert subword.decode([token("t"), token("up\ndown"), token("t")]) == "tup downt"


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def of_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subword:
    """A vocabulary with byte fallback; its text has the names of byte tokens in it, too."""
    path = tmp_path_factory.mktemp("bytes") / "spm.model"
    named = ["a <0x41> and <0x0A> are <0xFF>"] * 20
    return learnt_subword([*SENTENCES, *named], path, vocab_size=330, byte_fallback=True, type=request.param)


@given(text=st.text(max_size=40) | st.sampled_from(["<0x0A>", "<0x41><0x42>", "a <0x0A> and <0xFF>", "</s><unk>"]))
def test_byte_fallback_gives_back_every_text_as_it_is_normalised(of_bytes: Subword, text: str) -> None:
    tokens = of_bytes.encode(text)
    assert UNK not in tokens
    assert of_bytes.unknown_characters(text) == set()
    assert of_bytes.decode(tokens) == normalise(normalise(text).replace("\u2581", "_"))


@given(data=st.lists(st.one_of(st.integers(0, 255), st.integers(256, 325)), max_size=30))
def test_any_tokens_of_byte_fallback_are_one_line_and_what_is_not_utf_8_is_u_fffd(of_bytes: Subword, data: list[int]) -> None:
    text = of_bytes.decode([EOS + 1 + token for token in data])
    assert not any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in text)  # Controls, ends of lines and paragraphs.
    only_bytes = bytes(token for token in data if token < 256)
    if len(only_bytes) == len(data) and b" " not in only_bytes:
        wanted = only_bytes.decode(errors="replace").replace("\ufffd", "")
        assert normalise(text.replace("\ufffd", "")) == normalise(normalise(wanted)), data


def test_a_vocabulary_without_byte_fallback_is_the_same_as_ever_and_says_so(subword: Subword, of_bytes: Subword, tmp_path: Path) -> None:
    assert (subword.has_bytes, of_bytes.has_bytes) == (False, True)
    assert b"byte_fallback" not in subword.processor.serialized_model_proto()
    with refused(78, r"bpe\.vocab_size: .* at least 3\d\d, got 100"):
        train_subword(SENTENCES, tmp_path / "spm.model", settings.model_copy(update={"vocab_size": 100, "byte_fallback": True}))


def test_a_user_s_symbol_is_one_token_wherever_it_stands(tmp_path: Path) -> None:
    subword = learnt_subword(SENTENCES, tmp_path / "spm.model", vocab_size=180, user_symbols=["<name>", "Q9"])
    assert subword.vocab_size == settings.vocab_size
    for symbol in ("<name>", "Q9"):
        (piece,) = (token for token in subword.encode(f"the dog{symbol}s") if subword.processor.id_to_piece(token) == symbol)
        assert subword.decode([piece]) == symbol


def test_a_lowercasing_vocabulary_reads_any_case_and_writes_small_letters(tmp_path: Path) -> None:
    lower = settings.model_copy(update={"lowercase": True, "vocab_size": 60})
    for name in ("one.model", "other.model"):
        train_subword(["Der Große Hund läuft", "ÜBER die STRASSE, in Weiß"] * 30, tmp_path / name, lower)
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "other.model").read_bytes()  # No name of a temporary file.
    subword = Subword.load(tmp_path / "one.model")
    assert subword.encode("DIE GROßE straße") == subword.encode("die große Straße")
    assert subword.encode_clean(["ÜBER"]) == [subword.encode("über")]
    assert subword.decode(subword.encode("ÜBER die Große")) == "über die große"


def wide(text: str) -> str:
    return "".join(chr(ord(character) + 0xFEE0) for character in text)


@pytest.mark.parametrize(
    ("forms", "text", "read"),
    [
        (["width"], f"{wide('ABC123')} ｶﾞｷﾞ{wide(',')}「ﬁn」 “x”", f"ABC123 ガギ{wide(',')}「ﬁn」 “x”"),
        (["quotes"], f"„a“ «b» \u201ac\u2018 {wide('A')}", f'"a" "b" \'c\' {wide("A")}'),
        (["nfkc"], f"{wide('A1,')}ﬁ ㎏ ² ｶﾞ “x” \u00b4", "A1,fi kg 2 ガ “x” \u00b4"),
        (["nfkc", "quotes"], f"“{wide('A')}”", '"A"'),
    ],
)
def test_forms_of_characters_become_one_in_training_and_in_translation(forms: list[str], text: str, read: str, tmp_path: Path) -> None:
    subword = learnt_subword([*SENTENCES, *[f"{text} {read}"] * 30], tmp_path / "spm.model", vocab_size=180, normalise=forms)
    assert subword.encode(text) == subword.encode(read)
    assert subword.decode(subword.encode(text)) == read
    assert {*subword.forms} == {*forms}
    assert learnt_subword(SENTENCES, tmp_path / "plain.model", vocab_size=180).forms == []


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 5))
def test_a_sample_has_the_size_asked_for_in_order_and_is_the_same_again(total: int, wanted: int, seed: int) -> None:
    lines = [str(number) for number in range(total)]
    drawn = list(sampled(lines, total, wanted, seed))
    assert len(drawn) == min(wanted, total)
    assert drawn == sorted(set(drawn), key=int)
    assert drawn == list(sampled(iter(lines), total, wanted, seed))


def test_each_line_is_as_likely_in_a_sample_as_any_other() -> None:
    counts = Counter(chain.from_iterable(sampled("abcdefghij", 10, 3, seed) for seed in range(4000)))
    # Binomial with n = 4000 and p = 0.3: mean 1200, standard deviation 29; five of them either way.
    assert all(1055 < counts[letter] < 1345 for letter in "abcdefghij")
