from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_core.corpus.binary import Meta, SplitCounts, binarize_split, open_split, read_meta, write_meta
from transformer_core.errors import UserError


def sentences(vocab_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(4, vocab_size - 1), max_size=12).map(lambda ids: [*ids, 3])


@pytest.mark.parametrize(("vocab_size", "token_type"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_token_ids_are_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, vocab_size: int, token_type: type[np.unsignedinteger]
) -> None:
    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.tuples(sentences(vocab_size), sentences(vocab_size))))
    def check(pairs: list[tuple[list[int], list[int]]]) -> None:
        folder = tmp_path_factory.mktemp("binarized")
        binarize_split(folder, "train", pairs, vocab_size)
        split = open_split(folder, "train")
        assert [(list(source), list(target)) for source, target in zip(split.source, split.target, strict=True)] == pairs
        assert split.source.lengths.tolist() == [len(source) for source, _ in pairs]
        assert len(split) == len(split.source) == len(split.target) == len(pairs)
        assert np.load(folder / "train/source_tokens.npy").dtype == token_type

    check()


def test_the_largest_id_fits(tmp_path: Path) -> None:
    for vocab_size in (65_536, 65_537):
        folder = tmp_path / str(vocab_size)
        binarize_split(folder, "train", [([vocab_size - 1, 3], [3])], vocab_size)
        assert open_split(folder, "train").source[0].tolist() == [vocab_size - 1, 3]


def test_pairs_with_a_side_that_is_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    pairs = [([4, 3], [4, 4, 4, 3]), ([4, 4, 3], [5, 5, 3]), ([4, 4, 4, 3], [4, 3])]
    counts = binarize_split(tmp_path, "train", pairs, 10, max_tokens=3)
    assert counts == SplitCounts(pairs=1, source_tokens=3, target_tokens=3, dropped_too_long=2)
    assert open_split(tmp_path, "train").target[0].tolist() == [5, 5, 3]


def test_without_a_limit_every_pair_is_kept(tmp_path: Path) -> None:
    pairs = [([4] * 5000 + [3], [3]), ([3], [3])]
    assert binarize_split(tmp_path, "test", pairs, 10).pairs == 2


def test_tokens_stay_on_disk_until_they_are_read(tmp_path: Path) -> None:
    binarize_split(tmp_path, "train", [([4, 3], [5, 3])], 10)
    sentence = open_split(tmp_path, "train").source[0]
    bases = [sentence]
    while bases[-1].base is not None and isinstance(bases[-1].base, np.ndarray):
        bases.append(bases[-1].base)
    assert isinstance(bases[-1], np.memmap)


def test_there_is_no_sentence_before_the_first_or_after_the_last(tmp_path: Path) -> None:
    binarize_split(tmp_path, "train", [([4, 3], [5, 3])], 10)
    source = open_split(tmp_path, "train").source
    for index in (-1, 1):
        with pytest.raises(IndexError):
            source[index]


def test_meta_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    counts = SplitCounts(pairs=1, source_tokens=2, target_tokens=2, dropped_too_long=0)
    meta = Meta(vocabulary_hash="00ff", vocab_size=10, source="en", target="de", splits={"train": counts})
    write_meta(tmp_path, meta)
    assert read_meta(tmp_path) == meta


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/source_tokens.npy", None, "no such file"),
        ("train/source_tokens.npy", b"\x93NUMPY", "damaged"),
        ("train/target_offsets.npy", b"", "damaged"),
        ("meta.json", None, "no such file"),
        ("meta.json", b"{", "not valid JSON"),
        ("meta.json", b'{"format": 1}', "format"),
    ],
)
def test_what_is_missing_or_damaged_is_told_in_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    counts = binarize_split(tmp_path, "train", [([4, 3], [5, 3])], 10)
    write_meta(tmp_path, Meta(vocabulary_hash="0", vocab_size=10, source="en", target="de", splits={"train": counts}))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        (read_meta(tmp_path), open_split(tmp_path, "train"))
    assert Path(name).name in caught.value.message
    assert "\n" not in str(caught.value)


def test_sides_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    binarize_split(tmp_path, "train", [([4, 3], [5, 3])], 10)
    binarize_split(tmp_path, "other", [([4, 3], [5, 3]), ([4, 3], [5, 3])], 10)
    (tmp_path / "other/source_tokens.npy").replace(tmp_path / "train/source_tokens.npy")
    with pytest.raises(UserError, match="tokens and offsets of the source side do not belong together"):
        open_split(tmp_path, "train")
    (tmp_path / "other/source_offsets.npy").replace(tmp_path / "train/source_offsets.npy")
    with pytest.raises(UserError, match="2 source sentences, but 1 target sentences"):
        open_split(tmp_path, "train")
