import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.config import Bpe
from transformer_core.corpus.subword import EOS, PAD, UNK, Subword, train_subword
from transformer_core.corpus.text import normalise
from transformer_core.errors import ExitCode, UserError

ALPHABET = "abcdefghijklmnopqrstuvwxyzäöüßABC0123456789.,!?-é"
SENTENCES = [
    *(f"The {noun} sees {number} {noun}s, and the {noun} is glad." for noun in ("dog", "cat", "horse", "bird") for number in range(20)),
    *(f"Der {noun} sieht {number} davon, und der {noun} ist froh." for noun in ("Hund", "Kater", "Vogel") for number in range(20)),
    " ".join(ALPHABET),
]
settings = Bpe(init_from=None, vocab_size=180, type="bpe", character_coverage=1.0)


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    path = tmp_path_factory.mktemp("subword") / "spm.model"
    train_subword(SENTENCES, path, settings)
    return Subword.load(path)


@given(text=st.text(alphabet=ALPHABET + " \t\xa0\u200b\u0308"))
def test_decoding_gives_back_the_normalised_text(subword: Subword, text: str) -> None:
    # Letters of the training text only: any other becomes unk. A lone U+0308 is such a one.
    known = "".join(character for character in normalise(text) if character in ALPHABET + " ")
    assert subword.decode(subword.encode(known)) == normalise(known)


def test_a_text_is_encoded_as_its_normalised_form(subword: Subword) -> None:
    assert subword.encode("  the\u00a0dog\u200b sa\u0308gt\x85") == subword.encode("the dog sägt")


def test_every_text_ends_with_eos_and_an_empty_one_is_eos_alone(subword: Subword) -> None:
    assert subword.encode("the dog")[-1] == EOS
    assert subword.encode("") == [EOS]


def test_decoding_stops_at_eos_and_passes_over_padding(subword: Subword) -> None:
    ids = subword.encode("the dog")
    assert subword.decode([PAD, *ids, *subword.encode("and more"), PAD]) == "the dog"
    assert subword.decode(ids[:-1]) == "the dog"


def test_a_character_that_was_never_seen_is_unk(subword: Subword) -> None:
    assert UNK in subword.encode("dog 犬")


def test_the_space_mark_of_sentencepiece_in_a_text_does_not_become_a_space(subword: Subword) -> None:
    assert subword.encode("a\u2581b") == subword.encode("a_b")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_model_depends_on_text_and_settings_alone(tmp_path: Path, kind: str) -> None:
    wanted = settings.model_copy(update={"type": kind, "vocab_size": 70})
    for name in ("one", "other"):
        train_subword(iter(SENTENCES), tmp_path / name / f"{name}.model", wanted)
    assert (tmp_path / "one/one.model").read_bytes() == (tmp_path / "other/other.model").read_bytes()


def test_the_hash_is_of_the_files_bytes_and_the_size_is_the_settings(subword: Subword, tmp_path: Path) -> None:
    train_subword(SENTENCES, tmp_path / "spm.model", settings)
    assert subword.hash == hashlib.sha256((tmp_path / "spm.model").read_bytes()).hexdigest()
    assert subword.vocab_size == settings.vocab_size


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_that_is_too_large_is_told_with_the_largest_that_works(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"bpe\.vocab_size: this corpus allows at most (\d+), got 9000") as caught:
        train_subword(SENTENCES, tmp_path / "spm.model", Bpe(init_from=None, vocab_size=9000, type=kind, character_coverage=1.0))
    assert caught.value.exit_code is ExitCode.BAD_CONFIGURATION
    assert list(tmp_path.iterdir()) == []
    largest = int(caught.value.message.split("at most ")[1].split(",")[0])
    train_subword(SENTENCES, tmp_path / "spm.model", Bpe(init_from=None, vocab_size=largest, type=kind, character_coverage=1.0))
    assert Subword.load(tmp_path / "spm.model").vocab_size == largest


def test_a_vocabulary_smaller_than_the_alphabet_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bpe\.vocab_size: the characters of this corpus need at least \d+, got 17"):
        train_subword(SENTENCES, tmp_path / "spm.model", Bpe(init_from=None, vocab_size=17, type="bpe", character_coverage=1.0))


def test_no_text_at_all_is_bad_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="training text for the subword model is empty") as caught:
        train_subword(["", " "], tmp_path / "spm.model", settings)
    assert caught.value.exit_code is ExitCode.BAD_DATA


def test_a_very_long_line_is_learnt_from_too(tmp_path: Path) -> None:
    # SentencePiece's own limit, 4,192 bytes, would leave the line out without a word.
    train_subword([*SENTENCES, "ж " * 4000], tmp_path / "spm.model", settings)
    assert UNK not in Subword.load(tmp_path / "spm.model").encode("ж")


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_a_file_that_is_no_model_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(UserError, match=r"spm\.model: not a SentencePiece model"):
        Subword.load(tmp_path / "spm.model")


def test_a_missing_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Subword.load(tmp_path / "spm.model")
