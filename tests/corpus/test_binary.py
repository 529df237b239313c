from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.encoded import learnt_subword
from tests.refusals import refused
from transformer_core.corpus import text as corpus_text
from transformer_core.corpus.tokens import binarizing
from transformer_core.corpus.tokens.binarizing import EncodedPairs, encode_split, write_split
from transformer_core.corpus.tokens.binary import Meta, check_split, open_split
from transformer_core.corpus.tokens.subword import Subword

Pairs = Sequence[tuple[list[int], list[int]]]
ONE: Pairs = [([4, 3], [5, 3])]


def write(folder: Path, pairs: Pairs, vocab_size: int = 10, max_tokens: int | None = None, pairs_in_part: int = 7) -> Meta:
    """The folder of a split of these pairs."""
    cut = [(start + 1, pairs[start : start + pairs_in_part]) for start in range(0, len(pairs), pairs_in_part)]
    parts = [EncodedPairs.of(*zip(*part, strict=True), first, vocab_size, max_tokens) for first, part in cut]
    return write_split(folder / "train", parts, vocabulary_hash="0", vocab_size=vocab_size, source="en", target="de")


def sentences(vocab_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(4, vocab_size - 1), max_size=12).map(lambda ids: [*ids, 3])


@pytest.mark.parametrize(("vocab_size", "token_type"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_token_ids_are_read_back_exactly_from_many_shards(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, vocab_size: int, token_type: type[np.unsignedinteger]
) -> None:
    monkeypatch.setattr(binarizing, "PAIRS_PER_SHARD", 10)

    @given(st.lists(st.tuples(sentences(vocab_size), sentences(vocab_size)), max_size=60), st.integers(1, 12))
    def check(pairs: Pairs, pairs_in_part: int) -> None:
        folder = tmp_path_factory.mktemp("binarized")
        counts = write(folder, pairs, vocab_size, pairs_in_part=pairs_in_part)
        split = open_split(folder / "train")
        check_split(folder / "train")
        assert [(list(source), list(target)) for source, target in zip(split.source, split.target, strict=True)] == pairs
        assert split.source.lengths.tolist() == [len(source) for source, _ in pairs]
        assert split.target.lengths.tolist() == [len(target) for _, target in pairs]
        assert split.lines(np.arange(len(pairs))) == list(range(1, len(pairs) + 1))
        assert len(split) == len(split.source) == len(split.target) == len(pairs) == counts.pairs
        assert (counts.shards > 1) == (len(pairs) > -(-10 // pairs_in_part) * pairs_in_part)
        for index in (-1, len(pairs)):
            with pytest.raises(IndexError):
                split.source[index]
        for path in folder.glob("train/*.tokens.npy"):
            assert np.load(path).dtype == token_type

    check()


def test_pairs_with_a_side_that_is_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    counts = write(tmp_path, [([4, 3], [4, 4, 4, 3]), ([4, 4, 3], [5, 5, 3]), ([4, 4, 4, 3], [4, 3])], max_tokens=3)
    assert (counts.pairs, counts.source_tokens, counts.target_tokens, counts.dropped_too_long) == (1, 3, 3, 2)
    split = open_split(tmp_path / "train")
    assert split.target[0].tolist() == [5, 5, 3]
    assert split.lines(np.arange(1)) == [2]


def test_tokens_and_lines_stay_on_disk_until_they_are_read(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    split = open_split(tmp_path / "train")
    for array in (split.source[0], *split.shard_lines):
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array, np.memmap)


NO_SHARD = r"00000\.tokens\.npy: does not belong to the offsets and lines beside it"
# A file of the split of `ONE`, what is there in its place, and words of the line that names it.
REFUSALS: list[tuple[str, bytes | list[object] | None, str]] = [
    ("00000.tokens.npy", None, "no such file"),
    ("00000.tokens.npy", b"\x93NUMPY", "damaged"),
    ("00000.tokens.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<u2'\n", "damaged"),  # Python's tokenizer fails.
    ("00000.tokens.npy", b"\x93NUMPY\x01\x00\x00\x40" + b"(" * 0x4000, "damaged"),  # Its parser runs out of memory.
    ("00000.tokens.npy", [4, 3, 5, 3, 3], NO_SHARD),
    ("00000.offsets.npy", b"", "damaged"),
    *(("00000.offsets.npy", offsets, NO_SHARD) for offsets in ([0, 5, 4], [0, 4, 4], [1, 2, 4], [[0, 2, 4]])),
    ("meta.json", None, "no such file"),
    ("meta.json", b"{", "not valid JSON"),
    ("meta.json", b'{"format": 3}', "format"),
]


@pytest.mark.parametrize(("name", "content", "words"), REFUSALS)
def test_what_is_no_shard_is_told_in_one_line(tmp_path: Path, name: str, content: bytes | list[object] | None, words: str) -> None:
    write(tmp_path, ONE)
    file = tmp_path / "train" / name
    if isinstance(content, list):
        np.save(file, np.array(content, dtype=np.load(file).dtype))
    elif content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with refused(65, words) as caught:
        open_split(tmp_path / "train")
    assert name in caught.value.message or words == NO_SHARD
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_changed_bit_is_found_and_its_file_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("binarized")
    write(folder, [([4, 3], [5, 3])] * 5)
    path = data.draw(st.sampled_from(sorted((folder / "train").glob("*.npy"))))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with refused(65, f"{path.name}.*damaged"):
        check_split(folder / "train")


def test_shards_of_another_number_of_pairs_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one", ONE)
    write(tmp_path / "two", [*ONE, *ONE])
    (tmp_path / "one/train/meta.json").replace(tmp_path / "two/train/meta.json")
    with refused(65, r"two/train: 2 pairs, but meta\.json says 1"):
        open_split(tmp_path / "two/train")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Subword]:
    """Two cleaned files of 200 pairs and the vocabulary of them."""
    folder = tmp_path_factory.mktemp("text")
    sides = folder / "train.en", folder / "train.de"
    english = [f"the {word} number {number}" for number in range(100) for word in ("dog", "c_at")]
    german = [f"{word} Nummer {number}" for number in range(100) for word in ("der Hund", "die\u2581Katze")]
    for path, lines in zip(sides, (english, german), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return *sides, learnt_subword(english + german, folder / "spm.model", vocab_size=100)


@pytest.mark.parametrize("workers", [1, 2])
def test_text_becomes_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: tuple[Path, Path, Subword], workers: int) -> None:
    monkeypatch.setattr(corpus_text, "PAIRS_PER_CHUNK", 30)
    source, target, subword = text
    parts = encode_split(source, target, subword, workers=workers)
    write_split(tmp_path / "train", parts, vocabulary_hash="0", vocab_size=100, source="en", target="de")
    split = open_split(tmp_path / "train")
    for side, path in ((split.source, source), (split.target, target)):
        assert [list(ids) for ids in side] == [subword.encode(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path, text: tuple[Path, Path, Subword]) -> None:
    broken = tmp_path / "train.de"
    broken.write_bytes(text[1].read_bytes().replace(b"Hund Nummer 7", b"Hund \xff 7", 1))
    with refused(65, r"train\.de:15: not valid UTF-8"):
        list(encode_split(text[0], broken, text[2]))
