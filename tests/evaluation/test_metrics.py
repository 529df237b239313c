import csv
import gzip
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clone import DATA
from tests.evaluation.test_significance import SYSTEMS, sacrebleu_scores, systems, wmt17
from tests.refusals import refused
from transformer_core.corpus.text import normalise
from transformer_core.evaluation.bleu import as_outputs, corpus_bleu
from transformer_core.evaluation.metrics import (
    ALIKE,
    EXACT,
    QUANTILES,
    Example,
    GroupScore,
    OutputShares,
    bleu_by_group,
    choose_examples,
    length_labels,
    looks_tokenised,
    output_shares,
    read_aligned,
    refuse_tokenised,
    score,
    unlike_outputs,
)
from transformer_core.evaluation.significance import compare_scores

RAW = ["mirror/multi30k/test_2016_flickr.de.gz", "mirror/multi30k/train.fr.gz", "tatoeba/val.de", "wmt_small/val.de", "traps/nc5k.fr"]
TOKENISED = ["traps/opennmt10k.de", "peer/tfnmt_deen/deen_output", "peer/tfnmt_deen/deen_ref_bpe", "peer/tfnmt_deen/deen_ref_spm"]

REFERENCES = [
    "Ein Mann fährt mit dem Fahrrad durch die Stadt.",
    "Zwei Hunde spielen im Schnee, während ein Kind zusieht.",
    "Die Frau hat das Buch gestern nicht gelesen.",
    "Heute regnet es den ganzen Tag in Berlin.",
]
HYPOTHESES = [
    "Ein Mann fährt mit dem Fahrrad durch die Stadt.",
    "Zwei Hunde spielen im Schnee und ein Kind sieht zu.",
    "Die Frau liest heute ein anderes Buch.",
    "Es regnet den ganzen Tag in Berlin.",
]


def published() -> list[tuple[str, float]]:
    table = SYSTEMS / "expected_bleu.tsv"
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return [(row["system"], float(row["bleu_mteval_v13a_case_sensitive"])) for row in csv.DictReader(file, delimiter="\t")]


@wmt17
@pytest.mark.parametrize(("system", "bleu"), published())
def test_bleu_of_a_wmt17_system_is_the_published_one(system: str, bleu: float) -> None:
    hypotheses, references = systems(f"{system}.detok.de")
    everything = bleu_by_group({"all": range(len(references))}, hypotheses, references)
    assert [(group.size, round(group.score, 2)) for group in everything] == [(3004, bleu)]


def test_scores_intervals_and_signatures_are_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    printed = sacrebleu_scores(HYPOTHESES, REFERENCES, tmp_path, "-m", "bleu", "chrf", "ter", "-w", "10", "--confidence")
    ours = asdict(score(HYPOTHESES, REFERENCES, "de"))
    for name, theirs in zip(("bleu", "chrf", "ter"), printed, strict=True):
        mean, half = theirs["confidence_mean"], theirs["confidence_var"]
        found = [ours[f"{name}{end}"] for end in ("", "_low", "_high")]
        assert found == pytest.approx([theirs["score"], max(0, mean - half), mean + half], abs=1e-4)  # sacreBLEU sums in float32.
        assert ours[f"{name}_signature"] == re.sub(r"bs:1000\|seed:12345\|", "", theirs["signature"])


CHINESE = ["我们明天去公园散步。", "他的弟弟在一家很大的医院工作。", "这本书比那本书贵得多,但是很有意思。", "请把窗户打开,房间里太热了。"]
JAPANESE = ["私たちは明日、公園へ散歩に行きます。", "彼の弟はとても大きな病院で働いています。", "この本はあの本よりずっと高いです。"]


@pytest.mark.parametrize(
    ("references", "options", "tokeniser"), [(CHINESE, ["-l", "en-zh"], "zh"), (JAPANESE, ["--tokenize", "char"], "char")]
)
def test_tokens_of_text_without_spaces_are_no_sentences(references: list[str], options: list[str], tokeniser: str, tmp_path: Path) -> None:
    """13a would take a sentence for one word, and BLEU would be 0 unless all of it is right; TER's defaults do so, too."""
    hypotheses = [line.replace("大", "小").replace("本", "紙") for line in references]
    options = [*options, "-m", "bleu", "ter", "-w", "6", "--ter-normalized", "--ter-asian-support"]
    theirs, their_edits = sacrebleu_scores(hypotheses, references, tmp_path, *options)
    ours = score(hypotheses, references, "xx")
    assert (round(ours.bleu, 6), ours.bleu_signature) == (theirs["score"], theirs["signature"])
    assert (round(ours.ter, 6), ours.ter_signature) == (their_edits["score"], their_edits["signature"])
    assert ours.ter < 50
    assert compare_scores(hypotheses, hypotheses, references)[2].baseline == pytest.approx(ours.ter)
    assert f"tok:{tokeniser}|" in ours.bleu_signature
    assert 30 < ours.bleu_low <= ours.bleu < 100
    assert ours.bleu == pytest.approx(corpus_bleu(hypotheses, references))
    assert "paper_bleu" not in ours.moses_bleu
    everything = bleu_by_group({"all": range(len(references))}, hypotheses, references)
    assert everything[0].score == pytest.approx(ours.bleu)


def test_precisions_and_lengths_count_13a_tokens_and_half_the_length_pays_the_brevity_penalty() -> None:
    scores = score(["Ein Hund läuft."], ["Ein Hund rennt."], "de")
    assert scores.precisions == pytest.approx((75, 100 / 3, 25, 25))  # Smoothed where no sequence matches: 1/2 of 2, 1/4 of 1.
    assert (scores.brevity_penalty, scores.length_ratio, scores.lines) == (1, 1, 1)
    short = score(["a b c d e", ""], ["a b c d e f g", "h i j"], "de")
    assert (short.hypothesis_tokens, short.reference_tokens, short.length_ratio, short.lines) == (5, 10, 0.5, 2)
    assert short.brevity_penalty == pytest.approx(math.exp(1 - 10 / 5))


@pytest.mark.parametrize("hypotheses", [HYPOTHESES[:3], [*HYPOTHESES, "Noch eine."]])
def test_scoring_lists_of_unequal_length_is_refused(hypotheses: list[str]) -> None:
    with pytest.raises(ValueError, match="hypotheses for 4 references"):
        score(hypotheses, REFERENCES, "de")


def test_outputs_that_copy_are_empty_or_too_long_are_counted_in_percent() -> None:
    triples = [
        ("A dog runs.", "a  dog RUNS.", "Ein Hund läuft."),  # Copied, but for case and white space.
        ("Berlin", "Berlin", "Berlin"),  # Rightly the source.
        ("A dog.", " ", "Ein Hund."),  # Empty.
        ("", "", ""),  # Rightly empty.
        ("Yes.", "Ja, ja, ja, ja, ja, ja.", "Ja."),  # 23 characters: 20 more than the reference, which is no more than 20.
        ("Yes.", "Ja, ja, ja, ja, ja, ja!!", "Ja."),  # 21 more.
        ("A dog.", "d" * 80, "h" * 40),  # Not more than twice as long.
        ("A dog.", "d" * 81, "h" * 40),
        ("A dog.", "Ein Hund.", "Ein Hund."),
        ("", "Ein Hund.", ""),  # Made up, and within 20 characters.
    ]
    sources, hypotheses, references = zip(*triples, strict=True)
    assert output_shares(sources, hypotheses, references) == OutputShares(copied=10, empty=10, over_long=20)


def test_shares_of_no_sentence_or_of_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="no sentence"):
        output_shares([], [], [])
    with pytest.raises(ValueError, match="shorter"):
        output_shares(["a", "b"], ["a"], ["a"])


def test_reading_keeps_every_character_of_a_line(tmp_path: Path) -> None:
    line = "\ufeff Eine\u0085 Zeile\u2028 mit\r  Tücken\t "
    path = tmp_path / "hyp"
    path.write_bytes(f"{line}\n\nzuletzt".encode())
    assert read_aligned(path) == [[line, "", "zuletzt"]]


def test_buckets_of_length_end_after_every_tenth_word_and_at_fifty() -> None:
    lengths = [200, 51, 50, 41, 20, 11, 10, 1, 0]
    sources = [" ".join(["word"] * length) for length in lengths]
    groups = bleu_by_group(length_labels(sources), sources, sources)
    assert [(group.label, group.size) for group in groups] == [("0", 1), ("1-10", 2), ("11-20", 2), ("41-50", 2), ("51+", 2)]


def test_text_without_spaces_is_measured_in_characters() -> None:
    assert length_labels(["一只狗在草地上奔跑、一个孩子看着它。", "一只 狗 在 草地 上 奔跑"]) == {"1-10": [1], "11-20": [0]}


def test_bleu_of_a_bucket_is_that_of_its_sentences_alone() -> None:
    sources = ["short", "word " * 11, "short", "word " * 12]
    long = score(HYPOTHESES[1::2], REFERENCES[1::2], "de").bleu
    assert bleu_by_group(length_labels(sources), HYPOTHESES, REFERENCES)[1] == GroupScore("11-20", 2, long)


def chosen_of(scores: Sequence[float], count: int) -> list[Example]:
    """The examples of sentences of which those with the full score are right."""
    return choose_examples(scores, [score == 100 for score in scores], count)


def test_examples_are_taken_at_the_quartiles() -> None:
    chosen = chosen_of([float(number) for number in range(100)], 10)
    assert [(example.rank, example.index) for example in chosen] == [
        ("best", 99), ("best", 98), ("upper quartile", 75), ("upper quartile", 74), ("median", 50), ("median", 49),
        ("lower quartile", 26), ("lower quartile", 25), ("worst", 0), ("worst", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([50.0, 99.0, 5.0, 70.0, 30.0, 90.0, 20.0], 3, [("best", 1), ("median", 0), ("worst", 2)]),
        ([100.0, 90.0, 80.0, 100.0], 2, [("best", 1), ("worst", 2)]),
        ([100.0, 90.0, 80.0, 100.0], 3, [("best", 1), ("worst", 2), (EXACT, 0)]),
        ([0.0, 100.0, 0.0, 0.0], 2, [(ALIKE, 0), (ALIKE, 2)]),
        ([0.0, 100.0], 2, [("best", 0), (EXACT, 1)]),
    ],
    ids=["few", "none is right", "others are too few", "one score", "one that is not right"],
)
def test_few_examples_are_the_best_the_middle_and_the_worst(scores: list[float], count: int, expected: list[tuple[str, int]]) -> None:
    assert [(example.rank, example.index) for example in chosen_of(scores, count)] == expected


@given(scores=st.lists(st.integers(0, 10), min_size=1, max_size=30), count=st.integers(1, 40))
def test_examples_are_different_sentences_in_order_of_their_ranks(scores: list[int], count: int) -> None:
    chosen = chosen_of([10.0 * score for score in scores], count)
    by_rank = {rank: [example.score for example in chosen if example.rank == rank] for rank in (*QUANTILES, ALIKE, EXACT)}
    exact, alike = by_rank.pop(EXACT), by_rank.pop(ALIKE)
    assert len({example.index for example in chosen}) == len(chosen) == min(count, len(scores))
    descending = [score for rank, of_rank in by_rank.items() for score in (reversed(of_rank) if rank == "worst" else of_rank)]
    assert descending == sorted(descending, reverse=True)
    assert max(map(len, by_rank.values())) - min(map(len, by_rank.values())) <= 1
    assert set(exact) <= {100.0}
    assert 100.0 not in descending
    assert not alike or (len(set(alike)) == 1 and alike[0] < 100.0 and not descending)


@pytest.mark.skipif(not DATA.exists(), reason="the corpora are not beside the repository (../shared/data)")
@pytest.mark.parametrize("name", [*RAW, *TOKENISED])
def test_tokenised_and_segmented_corpora_look_so_and_others_do_not(name: str) -> None:
    content = (DATA / name).read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).decode().split("\n")[:-1]
    assert looks_tokenised(lines) == (name in TOKENISED)


LEFT = [
    "Ein Hund läuft .",
    "Ja , gern",
    "d&apos; accord",
    "ein Apf@@ el",
    "ein Ap@@",
    "rich @-@ text",
    "▁Ein ▁Hund",
    "\u72d7 \u3002",
    "a .\r",
]


@pytest.mark.parametrize("line", LEFT)
def test_each_way_of_tokenising_leaves_its_mark(line: str) -> None:
    assert looks_tokenised([line])


@pytest.mark.parametrize("line", ["Ein Hund läuft.", "Vraiment ?", "Oui : « non » !", "AT&T", "3 .5", "a@b.de", "", " ", "... nun ja"])
def test_text_as_people_write_it_has_none(line: str) -> None:
    assert not looks_tokenised([line])


def test_a_few_marked_lines_are_typing_errors() -> None:
    refuse_tokenised(Path("test.de"), [])
    refuse_tokenised(Path("test.de"), ["Ein Hund läuft ."] + ["Ein Hund läuft."] * 10)


def test_the_error_names_the_first_line_the_share_and_the_remedy() -> None:
    with refused(65) as error:
        refuse_tokenised(Path("data/raw/test.de"), ["Ein Hund.", "", "Ein Hund läuft .", "Ja , gern"])
    assert str(error.value) == (
        "data/raw/test.de:3: looks tokenised (67% of the lines do), but BLEU needs detokenised text. "
        "Detokenise the corpus, or set evaluate.allow_tokenised: true."
    )


@pytest.mark.parametrize(
    "reference",
    [
        "Die Donau\u00addampf\u00adschiff\u00adfahrt beginnt am Morgen.",
        "\u200fذهب الولد إلى المدرسة\u200f في الصباح.",  # noqa: RUF001
        "הילד\u200f הלך\u200e אל בית\u200f הספר.",
        "ខ្ញុំ\u200bចូលចិត្ត\u200bអាន\u200bសៀវភៅ\u200bនៅ\u200bសាលា",
        "Er sagte: \u0084Heute regnet es in Berlin\u0093.",
        "Das Mu\u0308ller-Haus steht in Mu\u0308nchen.",
    ],
    ids=["soft hyphens", "Arabic marks", "Hebrew marks", "Khmer spaces", "cp1252 quotes", "decomposed"],
)
def test_a_perfect_translation_scores_100_whatever_characters_its_reference_has(reference: str) -> None:
    outputs, references = [normalise(reference)] * 2, [reference] * 2
    scores = score(outputs, references, "de")
    assert (scores.bleu, scores.chrf, scores.ter) == pytest.approx((100, 100, 0))
    assert corpus_bleu(outputs, references) == pytest.approx(100)
    assert [one.candidate for one in compare_scores(outputs, outputs, references)] == pytest.approx([100, 100, 0])
    signatures = [scores.bleu_signature, scores.chrf_signature, *(one.signature for one in compare_scores(outputs, outputs, references))]
    assert all(signature.endswith("|ref:normalised") for signature in signatures)
    assert "ref.de: 2 of 2 lines" in str(unlike_outputs(Path("ref.de"), references))


def test_references_that_differ_in_white_space_alone_are_scored_as_they_are() -> None:
    references = ["Ein Mann  fährt Rad.\r", "Zwei Hunde."]
    assert as_outputs(references) == (references, 0)
    assert unlike_outputs(Path("ref.de"), references) is None


def test_ter_is_left_out_where_a_line_would_take_many_seconds() -> None:
    words = " ".join(f"Wort{number}" for number in range(201))
    for longer in ([words, "Ja."], ["Nein.", "Ja."]), (["Nein.", "Ja."], [words, "Ja."]):
        scores = score(*longer, "de")
        assert (scores.ter, scores.ter_low, scores.ter_high) == (None, None, None)
        assert [one.metric for one in compare_scores(longer[0], *longer)] == ["BLEU", "chrF2"]
    short = words.rsplit(" ", 1)[0]
    assert score([short], [short], "de").ter == 0
