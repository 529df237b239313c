"""BLEU of Moses' tokens: the paper's with compounds split, that of Multi30k, and multi-bleu.perl's arithmetic."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clone import DATA
from transformer_core.evaluation.moses_bleu import moses_tokens, multi30k_lower, multi30k_tokens, multi_bleu, paper_bleu
from transformer_core.evaluation.scoring import read_aligned

PEER, MULTI30K = DATA / "peer", DATA / "mirror/multi30k"

# By hand from tokenizer.perl's rules, `-l de`, in their order.
MOSES = [
    ("Ein Hund läuft.", "Ein Hund läuft ."),
    ("Hallo, Welt!", "Hallo , Welt !"),
    ("Am 3. Mai kostete es 5,300 Euro, also 1.250,50.", "Am 3. Mai kostete es 5,300 Euro , also 1.250,50 ."),
    ("Er sagte: „Nein“ (leise) und \"doch\".", "Er sagte : „ Nein “ ( leise ) und &quot; doch &quot; ."),
    ("Das ist z.B. so, sagt Dr. Huber usw. und geht.", "Das ist z.B. so , sagt Dr. Huber usw. und geht ."),
    ("Und dann... Stille", "Und dann ... Stille"),
    ("Geht's? A&B <c> [d] e|f", "Geht &apos; s ? A &amp; B &lt; c &gt; &#91; d &#93; e &#124; f"),
    ("ein\u00a0geschütztes \t Leerzeichen ", "ein geschütztes Leerzeichen"),
    ("Wir kamen um 20 Uhr.", "Wir kamen um 20 Uhr ."),
    ("", ""),
]  # fmt: skip

COMPOUNDS = [
    ("rich-text format", "rich ##AT##-##AT## text format"),
    ("Aix-en-Provence", "Aix ##AT##-##AT## en ##AT##-##AT## Provence"),
    ("a-b-c", "a ##AT##-##AT## b-c"),
    ("Nord- und Südsee", "Nord- und Südsee"),
    ("er - sie", "er - sie"),
    ("a--b", "a ##AT##-##AT## -b"),
    ("-5", "-5"),
    ("16-jährige und 3-4", "16 ##AT##-##AT## jährige und 3 ##AT##-##AT## 4"),
]


@pytest.mark.parametrize(("text", "tokens"), [*MOSES, *COMPOUNDS])
def test_tokens_are_those_of_moses_with_compounds_split_as_the_papers_script_does(text: str, tokens: str) -> None:
    assert moses_tokens([text], "de") == [tokens]


def test_a_split_compound_is_right_in_part() -> None:
    hypotheses, references = ["Das ist ein Text-Format für alle ."], ["Das ist ein Bild-Format für alle ."]
    # Tokens: Das ist ein Text/Bild ##AT##-##AT## Format für alle . (9): 8, 6, 4 and 2 n-grams of 9, 8, 7 and 6 are right.
    expected = 100 * (8 / 9 * 6 / 8 * 4 / 7 * 2 / 6) ** 0.25
    assert paper_bleu(hypotheses, references, "de")[0] == pytest.approx(expected)
    # Unsplit there are 7 tokens, and no four in a row are right.
    assert paper_bleu(hypotheses, references, "en")[0] == 0


def test_multi30k_counts_lowercased_text_with_plain_punctuation() -> None:
    assert multi30k_tokens(["Ein „Großer“ HUND läuft…"], "de") == ["ein &quot; großer &quot; hund läuft ..."]
    score, signature = multi30k_lower(["ein hund läuft weg ."], ["Ein Hund läuft weg."], "de")
    assert score == pytest.approx(100)
    assert signature.startswith("multi-bleu|nrefs:1|case:lc|norm:moses-de|tok:moses-de|smooth:none|sacremoses:")


@pytest.mark.skipif(not MULTI30K.exists(), reason="Multi30k is not beside the repository (../shared/data/mirror)")
def test_the_reference_of_multi30k_has_the_published_length() -> None:
    lines = gzip.decompress((MULTI30K / "test_2016_flickr.de.gz").read_bytes()).decode().split("\n")[:-1]
    assert sum(len(line.split()) for line in multi30k_tokens(lines, "de")) == 12_103


def test_a_language_that_moses_does_not_know_is_scored_all_the_same() -> None:
    assert paper_bleu(["Kila mtu ana haki ."], ["Kila mtu ana haki ."], "sw")[0] == pytest.approx(100)


def test_without_a_match_of_four_tokens_or_any_token_the_score_is_zero() -> None:
    assert [multi_bleu([line], ["der Hund läuft weg ."]) for line in ("", "der", "der Hund läuft schnell weg .")] == [0, 0, 0]
    assert multi_bleu(["der"], [""]) == 0


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_text_has_tokens_and_a_score(lines: list[str]) -> None:
    tokens = moses_tokens(lines, "de")
    assert [line.split() for line in tokens] == [line.split(" ") if line else [] for line in tokens]
    assert -1e-9 <= paper_bleu(lines, lines, "de")[0] <= 100 + 1e-9


@pytest.mark.skipif(not PEER.exists(), reason="the peer outputs are not beside the repository (../shared/data/peer)")
@pytest.mark.parametrize("segmented", ["bpe", "spm"])
def test_bleu_of_a_german_english_system_is_that_of_tensorflow_nmt(segmented: str) -> None:
    folder = PEER / "tfnmt_deen"
    hypotheses, references = read_aligned(folder / "deen_output", folder / f"deen_ref_{segmented}")
    if segmented == "bpe":
        references = [line.replace("@@ ", "") for line in references]
    else:
        references = [line.replace(" ", "").replace("▁", " ").strip() for line in references]
    assert hypotheses.count("") == 3
    # It splits at each single space, and so finds one token, an empty one, in an empty line.
    with_empty_tokens = [line or "<empty>" for line in hypotheses]
    assert multi_bleu(with_empty_tokens, references) == pytest.approx(22.5855084573, abs=1e-9)
