import gzip
from pathlib import Path

import pytest

from transformer_core.errors import ExitCode, UserError
from transformer_core.evaluation.tokenised import looks_tokenised, refuse_tokenised

DATA = Path(__file__).parents[2].parent / "shared/data"
RAW = ["mirror/multi30k/test_2016_flickr.de.gz", "mirror/multi30k/train.fr.gz", "tatoeba/val.de", "wmt_small/val.de", "traps/nc5k.fr"]
TOKENISED = ["traps/opennmt10k.de", "peer/tfnmt_deen/deen_output", "peer/tfnmt_deen/deen_ref_bpe", "peer/tfnmt_deen/deen_ref_spm"]

beside = pytest.mark.skipif(not DATA.exists(), reason="the corpora are not beside the repository (../shared/data)")


def lines_of(name: str) -> list[str]:
    content = (DATA / name).read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode().split("\n")[:-1]


@beside
@pytest.mark.parametrize("name", RAW)
def test_detokenised_corpora_do_not_look_tokenised(name: str) -> None:
    assert not looks_tokenised(lines_of(name))


@beside
@pytest.mark.parametrize("name", TOKENISED)
def test_tokenised_and_segmented_corpora_do(name: str) -> None:
    assert looks_tokenised(lines_of(name))


@pytest.mark.parametrize(
    "line",
    ["Ein Hund läuft .", "Ja , gern", "d&apos; accord", "ein Apf@@ el", "ein Ap@@", "rich @-@ text", "▁Ein ▁Hund", "\u72d7 \u3002"],
)
def test_each_way_of_tokenising_leaves_its_mark(line: str) -> None:
    assert looks_tokenised([line])


@pytest.mark.parametrize("line", ["Ein Hund läuft.", "Vraiment ?", "Oui : « non » !", "AT&T", "3 .5", "a@b.de", "", "... nun ja"])
def test_text_as_people_write_it_has_none(line: str) -> None:
    assert not looks_tokenised([line])


def test_no_lines_look_like_anything() -> None:
    assert not looks_tokenised([])
    assert not looks_tokenised(["", " "])


def test_a_few_marked_lines_are_typing_errors() -> None:
    refuse_tokenised(Path("test.de"), ["Ein Hund läuft ."] + ["Ein Hund läuft."] * 10)


def test_the_error_names_the_first_line_the_share_and_the_remedy() -> None:
    with pytest.raises(UserError) as error:
        refuse_tokenised(Path("data/raw/test.de"), ["Ein Hund.", "", "Ein Hund läuft .", "Ja , gern"])
    assert str(error.value) == (
        "data/raw/test.de:3: looks tokenised, as 67% of its lines do, and BLEU is of detokenised text. "
        "Detokenise the corpus, or set evaluate.allow_tokenised: true."
    )
    assert error.value.exit_code == ExitCode.BAD_DATA
