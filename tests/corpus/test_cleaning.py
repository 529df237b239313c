import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clone import DATA
from tests.refusals import refused
from transformer_core.config import Clean
from transformer_core.corpus import text
from transformer_core.corpus.cleaning import rules
from transformer_core.corpus.cleaning.cleaner import EXAMPLES, LONGEST_COUNTED, LOW_SCORE, below, clean_corpus, repeated_targets, worst
from transformer_core.corpus.cleaning.report import CleaningReport
from transformer_core.corpus.placeholders import SYMBOLS
from transformer_core.corpus.text import SPLITS, read_pairs, write_pairs

OFF = Clean(
    max_words=None, max_ratio=None, max_length_ratio=None, drop_copies=False, drop_foreign=False, drop_other_languages=False,
    drop_overlap=False, drop_duplicates=False, drop_case_duplicates=False, drop_near_duplicates=False, drop_repeated_targets=False,
    on_invalid_utf8="stop", drop_worst=0.0, score_by=None, scorers=[], placeholders=0.0,
)  # fmt: skip
DEFAULT = OFF.model_copy(update={"max_words": 100, "max_ratio": 3.0, "drop_copies": True, "drop_duplicates": True})
FOREIGN, OVERLAP, COPIES, DUPLICATES, NEAR, REPEATED, IN_ANY_CASE, OTHER = (
    OFF.model_copy(update={f"drop_{what}": True})
    for what in ["foreign", "overlap", "copies", "duplicates", "near_duplicates", "repeated_targets", "case_duplicates", "other_languages"]
)
RATIO = OFF.model_copy(update={"max_ratio": 3.0})
GOOD = ("one two three", "eins zwei drei")
TRAPS = DATA / "traps"

Pair = tuple[str, str]
awkward = st.text(alphabet="\t\r\v\x00\x1c\x85\xa0\u2028\u200b\ufeff\u2000\u0301 aeß")
texts = (awkward | st.text()).map(lambda text: text.replace("\n", ""))
corpora = st.lists(st.tuples(texts, texts))


def write_raw_pairs(folder: Path, train: list[Pair], held_out: Sequence[Pair] = (GOOD,), languages: tuple[str, str] = ("en", "de")) -> None:
    for split in SPLITS:
        write_pairs(*(folder / f"{split}.{language}" for language in languages), train if split == "train" else held_out)


def cleaned(
    folder: Path, settings: Clean = DEFAULT, name: str = "clean", raw: str = "raw", **options: Any
) -> tuple[CleaningReport, list[Pair]]:
    (folder / name).mkdir()
    report = clean_corpus(folder / raw, folder / name, "en", "de", settings, **options)
    return report, pairs_in(folder / name, "train")


def pairs_in(folder: Path, split: str) -> list[Pair]:
    return list(read_pairs(folder / f"{split}.en", folder / f"{split}.de"))


def dropped(report: CleaningReport) -> dict[str, int]:
    """What each rule dropped, but for the rules that dropped nothing."""
    return {rule: count for rule, count in report.dropped.items() if count}


@given(corpora)
def test_a_pair_is_kept_or_counted_and_cleaning_again_changes_nothing(tmp_path_factory: pytest.TempPathFactory, train: list[Pair]) -> None:
    folder = tmp_path_factory.mktemp("clean")
    write_raw_pairs(folder / "raw", [GOOD, *train], [GOOD, *train])
    first, once = cleaned(folder)
    second, twice = cleaned(folder, raw="clean", name="again")
    assert first.pairs_in == len(train) + 1 == first.pairs_out + sum(first.dropped.values())
    assert twice == once
    assert len(once) == first.pairs_out
    assert second.pairs_in == second.pairs_out == first.pairs_out
    assert not any(second.dropped.values())
    assert not any(second.repaired.values())
    for split in ("valid", "test"):
        assert pairs_in(folder / "again", split) == pairs_in(folder / "clean", split)


@pytest.mark.parametrize(
    ("settings", "rule", "pair"),
    [
        (DEFAULT, "empty", ("", "etwas")),
        (DEFAULT, "empty", ("something", " \u200b\t")),
        (DEFAULT, "too_long", ("w " * 101, "w " * 100)),
        (DEFAULT, "ratio", ("one two three four", "eins")),
        (RATIO, "ratio", ("dogs", "第一只狗睡在房子里")),
        (DEFAULT, "copy", ("the same", "the  same")),
        (DEFAULT, "duplicate", ("four  five six", "vier fünf\u00a0sechs")),
        (FOREIGN, "foreign", ("one good word", "одно хорошее слово")),
        (FOREIGN, "foreign", ("三つの言葉", "eins zwei drei")),
        (OVERLAP, "overlap", ("One Two Three", "etwas anderes")),
        (OVERLAP, "overlap", ("something else", "eins zwei DREI")),
        (IN_ANY_CASE, "case_duplicate", ("FOUR five six", "vier fünf SECHS")),
        (NEAR, "near_duplicate", ("Four, five - six!", "„Vier fünf sechs?“")),
        (REPEATED, "repeated_target", ("something else", "vier fünf sechs")),
    ],
)
def test_each_rule_drops_its_pairs_and_shows_them(tmp_path: Path, settings: Clean, rule: str, pair: Pair) -> None:
    first = ("four five six", "vier fünf sechs")
    write_raw_pairs(tmp_path / "raw", [first, pair])
    report, kept = cleaned(tmp_path, settings)
    assert kept == [first]
    assert dropped(report) == {rule: 1}
    assert list(report.examples) == [rule]
    loose, all_kept = cleaned(tmp_path, OFF, "loose")
    assert loose.pairs_out == len(all_kept) == (1 if rule == "empty" else 2)
    if settings is not DEFAULT:
        assert set(report.dropped) == {"empty", rule}
        assert (report.examples, all_kept) == ({rule: [pair]}, [first, pair])


GREEK = [("English text", "deutscher Text"), ("Ελληνικά words", "griechische Wörter")]
STAYS = [
    (DEFAULT, [GOOD], ("one two three", "eins")),
    (DEFAULT, [GOOD], (" ".join("w" * 100), " ".join("v" * 100))),
    # Text without spaces between words has the length of its characters.
    (RATIO, [GOOD], ("the dog sleeps in the house", "第一只狗睡在房子里")),
    (RATIO, [GOOD], ("one two three four", "สุนัขนอน")),
    # A script is foreign only where it has most of the letters, and none is where validation and test have no letters.
    (FOREIGN, GREEK, ("it says привет to us all", "es sagt uns allen привет")),
    (FOREIGN, GREEK, ("3.14 = π?", "2 + 2")),
    (FOREIGN, GREEK, ("Ελ", "ab c")),
    (FOREIGN, [("1 + 1", "2"), ("🐎 ?", "!")], ("one", "一")),
]


@pytest.mark.parametrize(("settings", "held_out", "pair"), STAYS)
def test_a_pair_within_the_bounds_of_a_rule_stays(tmp_path: Path, settings: Clean, held_out: list[Pair], pair: Pair) -> None:
    write_raw_pairs(tmp_path / "raw", [GOOD, pair], held_out)
    assert cleaned(tmp_path, settings)[1] == [GOOD, pair]


LENGTHS = OFF.model_copy(update={"max_length_ratio": 4.0})
JAPANESE = [
    ("My sister works in a small shop near the station.", "姉は駅の近くの小さな店で働いています。"),
    ("The train was late again today.", "電車は今日もまた遅れた。"),
    ("Please close the window before you leave.", "出かける前に窓を閉めてください。"),
    ("I have never seen the sea.", "私は海を見たことがありません。"),
    ("We bought bread, cheese and two bottles of milk.", "私たちはパンとチーズと牛乳を二本買いました。"),
    ("He has been learning the piano for three years.", "彼は三年前からピアノを習っている。"),
    ("Hi.", "こんにちは。"),
]
KOREAN = [
    ("It's a full moon.", "보름달이야."),
    ("The weather is fine today.", "오늘은 날씨가 좋다."),
    ("My brother lives in Busan with his family.", "형은 가족과 함께 부산에 산다."),
    ("Where can I buy a ticket?", "표는 어디에서 살 수 있나요?"),
    ("She reads a book before she goes to bed.", "그녀는 자기 전에 책을 읽는다."),
    ("I am looking for my glasses.", "안경을 찾고 있어요."),
    ("I felt the same way.", "동감이야."),
]


@pytest.mark.parametrize("pairs", [JAPANESE, KOREAN], ids=["Japanese", "Korean"])
def test_a_ratio_of_characters_far_from_the_median_is_dropped_in_any_script(tmp_path: Path, pairs: list[Pair]) -> None:
    """Ratios of words drop the short Korean pairs and cannot be counted in Japanese."""
    paragraph, answer = " ".join(source for source, _ in pairs[2:6]), "".join(target for _, target in pairs[2:6])
    spoiled = [(paragraph, pairs[1][1]), (pairs[0][0], answer * 4)]
    write_raw_pairs(tmp_path / "raw", [*pairs, *spoiled])
    report, kept = cleaned(tmp_path, LENGTHS)
    assert (kept, dropped(report)) == (pairs, {"length_ratio": 2})
    assert report.examples == {"length_ratio": spoiled}


@pytest.mark.skipif(not (DATA / "tatoeba_ja").exists(), reason="no Japanese sentences beside the repository (../shared/data/tatoeba_ja)")
def test_spoiled_pairs_among_real_ones_are_dropped(tmp_path: Path) -> None:
    """A short sentence beside four long ones. Of the real pairs, in which proverbs and the like differ by up to 3.7, it drops none."""
    with ZipFile(DATA / "tatoeba_ja/jpn-eng.zip") as zipped:
        rows = [line.split("\t") for line in zipped.read("jpn.txt").decode().splitlines()]
    Random(1).shuffle(rows)
    pairs = [(source, target) for source, target, _ in rows]
    short, long = [target for _, target in pairs if len(target) < 12], [source for source, _ in pairs if len(source) > 30]
    spoiled = [(" ".join(long[4 * at : 4 * at + 4]), short[at]) for at in range(300)]
    write_raw_pairs(tmp_path / "raw", [*pairs, *spoiled])
    report, _ = cleaned(tmp_path, LENGTHS)
    assert report.dropped["length_ratio"] == 300
    assert set(report.examples["length_ratio"]) <= set(spoiled)


def test_words_that_both_sides_have_are_not_foreign(tmp_path: Path) -> None:
    stays = [("UN is short for United Nations.", "UN は United Nations の略です。"), ("We are on Facebook.", "Facebookにいる")]
    goes = [("Read this now.", "Read this today."), ("Look at that.", "こ See what is over there")]
    write_raw_pairs(tmp_path / "raw", [*stays, *goes], JAPANESE)
    report, kept = cleaned(tmp_path, FOREIGN)
    assert (kept, dropped(report)) == (stays, {"foreign": 2})


def test_a_side_that_is_surely_in_another_language_is_dropped(tmp_path: Path) -> None:
    stays = [("The children are playing in the garden.", "Die Kinder spielen im Garten."), ("Taxi?", "Hotel Berlin"), ("1 + 1", "1 + 1")]
    goes = [
        ("Die Kinder spielen heute im Garten.", "The children are playing in the garden today."),
        ("The children are playing in the garden.", "Les enfants jouent dans le jardin de la maison."),
    ]
    write_raw_pairs(tmp_path / "raw", [*stays, *goes])
    report, kept = cleaned(tmp_path, OTHER)
    assert (kept, dropped(report)) == (stays, {"other_language": 2})


def test_a_language_that_cannot_be_identified_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw_pairs(tmp_path / "raw", [GOOD], languages=("en", "qqq"))
    (tmp_path / "clean").mkdir()
    with refused(78, "clean.drop_other_languages: qqq is no language that py3langid knows"):
        clean_corpus(tmp_path / "raw", tmp_path / "clean", "en", "qqq", OTHER)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    monkeypatch.setattr(rules, "_identifier", rules._identifier.__wrapped__)
    with refused(78, "py3langid is not installed.*pip install py3langid"):
        clean_corpus(tmp_path / "raw", tmp_path / "clean", "en", "qqq", OTHER)


def test_a_sentence_is_compared_and_scored_without_its_tag(tmp_path: Path) -> None:
    settings = DEFAULT.model_copy(update={"drop_overlap": True})
    seen: list[str] = []

    def scores(found: Iterator[Pair]) -> Iterator[float]:
        for pair in found:
            seen.append(pair[0])
            yield 0.0

    bad = {"empty": ("", "kurz hier jetzt"), "copy": ("Umsatz 2019 GmbH", "Umsatz 2019 GmbH"), "overlap": ("One two three", "vier")}
    write_raw_pairs(tmp_path / "raw", [("<bt> a b", "c"), ("a b", "c"), *((f"<bt> {source}", target) for source, target in bad.values())])
    report, kept = cleaned(tmp_path, settings, scored={LOW_SCORE: partial(worst, 0.01, scores)}, tags=["<bt>"])
    assert kept == [("<bt> a b", "c"), ("a b", "c")]
    assert seen == ["a b", "a b"]
    assert dropped(report) == dict.fromkeys(bad, 1)


def test_trees_over_words_of_another_script_than_their_labels_are_kept_unless_they_are_held_out(tmp_path: Path) -> None:
    train, held_out = ((text, "(S (NP {}) (VP {}))".format(*text.split())) for text in ("собака спит", "кошка спит"))
    write_raw_pairs(tmp_path / "raw", [train, held_out], [held_out], ("ru", "tree"))
    (tmp_path / "clean").mkdir()
    settings = FOREIGN.model_copy(update={"drop_overlap": "pairs"})
    assert dropped(clean_corpus(tmp_path / "raw", tmp_path / "clean", "ru", "tree", settings)) == {"overlap": 1}


def test_a_pair_counts_for_the_first_of_its_rules(tmp_path: Path) -> None:
    everything = DEFAULT.model_copy(update={"drop_foreign": True, "drop_overlap": True, "drop_case_duplicates": True})
    write_raw_pairs(tmp_path / "raw", [("a b", "c d"), ("a b", "c d"), ("A b", "c d"), ("A b", "c d"), ("one two three",) * 2, ("", "")])
    report, kept = cleaned(tmp_path, everything)
    assert kept == [("a b", "c d")]
    assert dropped(report) == {"empty": 1, "copy": 1, "duplicate": 2, "case_duplicate": 1}


def test_lengths_are_counted_before_and_after(tmp_path: Path) -> None:
    write_raw_pairs(tmp_path / "raw", [("a b", "c d"), ("a b", "c d"), ("w " * 300, "第一只狗睡在房子里")])
    report, _ = cleaned(tmp_path)
    counts = (report.lengths_in["en"], report.lengths_in["de"], report.lengths_out["en"])
    counted = [{words: count for words, count in enumerate(of_side) if count} for of_side in counts]
    assert counted == [{2: 2, LONGEST_COUNTED: 1}, {2: 2, 9: 1}, {2: 1}]


def test_the_number_of_workers_does_not_change_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PAIRS_PER_CHUNK", 3)
    awkward_pairs = [GOOD, ("good", "gut"), ("Good", "gut"), ("", "leer"), ("same", "same"), ("привет", "gut"), ("be\x07ll", "x\x85 y")]
    numbered = [(f"one {number}", f"eins {number}") for number in range(7)]
    write_raw_pairs(tmp_path / "raw", [*awkward_pairs, *numbered, *awkward_pairs, ("w " * 101, "v")])
    everything = DEFAULT.model_copy(update={"drop_foreign": True, "drop_case_duplicates": True})
    found = []
    for workers in (1, 2):
        cleaned(tmp_path, everything, f"{workers}", workers=workers)
        found.append({path.name: path.read_bytes() for path in (tmp_path / f"{workers}").iterdir()})
    assert found[0] == found[1]
    assert set(found[0]) == {"report.json", *(f"{split}.{side}" for split in ("train", "valid", "test") for side in ("en", "de"))}


def test_repairs_are_counted_by_line(tmp_path: Path) -> None:
    write_raw_pairs(tmp_path / "raw", [("be\x07ll\u200b and\x93 more", "Glocke "), ("e\u0301t\u00e9  a", "Sommer"), ("a &amp; b", "a & b")])
    report, kept = cleaned(tmp_path)
    assert kept == [("bell and“ more", "Glocke"), ("été a", "Sommer"), ("a &amp; b", "a & b")]
    assert report.repaired == {"mojibake": 1, "control_characters": 1, "unicode_form": 1, "white_space": 2}


def test_the_report_is_written_beside_the_text_with_few_short_examples(tmp_path: Path) -> None:
    write_raw_pairs(tmp_path / "raw", [GOOD, GOOD, *((f"{number} " * 200, "kurz") for number in range(20))])
    report, _ = cleaned(tmp_path)
    assert len(report.examples["too_long"]) == EXAMPLES
    assert max(len(source) for source, _ in report.examples["too_long"]) == 300
    document = json.loads((tmp_path / "clean/report.json").read_text(encoding="utf-8"))
    assert document == json.loads(report.model_dump_json())
    assert document["examples"]["duplicate"] == [list(GOOD)]


def test_validation_and_test_are_repaired_and_keep_every_line(tmp_path: Path) -> None:
    held_out = [GOOD, GOOD, ("", "leer"), ("same", "same"), ("w " * 300, "x\x85y"), ("\u200b", "")]
    write_raw_pairs(tmp_path / "raw", [GOOD], held_out)
    report, _ = cleaned(tmp_path)
    expected = [GOOD, GOOD, ("", "leer"), ("same", "same"), (" ".join("w" * 300), "x…y"), ("", "")]
    for split in ("valid", "test"):
        assert pairs_in(tmp_path / "clean", split) == expected
        repaired = {"mojibake": 1, "control_characters": 1, "unicode_form": 0, "white_space": 1}
        assert report.splits[split].model_dump() == {"pairs": 6, "empty": 2, "repaired": repaired}


def test_invalid_utf8_stops_with_file_and_line_unless_its_training_pairs_are_dropped(tmp_path: Path) -> None:
    write_raw_pairs(tmp_path / "raw", [GOOD, ("two", "zwei")])
    (tmp_path / "raw/train.de").write_bytes(b"eins zwei drei\nzw\xffi\n")
    message = r"raw/train\.de:2: not valid UTF-8 \(byte 0xff at column 3\)\. .*on_invalid_utf8: drop"
    with refused(65, message):
        cleaned(tmp_path, OFF)
    dropping = DEFAULT.model_copy(update={"on_invalid_utf8": "drop"})
    report, kept = cleaned(tmp_path, dropping, "dropped")
    assert kept == [GOOD]
    assert report.dropped["invalid_utf8"] == 1
    assert report.examples["invalid_utf8"] == [("two", "zw\ufffdi")]
    (tmp_path / "raw/test.en").write_bytes(b"\xff\n")
    with refused(65, r"raw/test\.en:1: not valid UTF-8"):
        cleaned(tmp_path, dropping, "test")


def test_a_corpus_of_which_nothing_is_left_is_bad_data(tmp_path: Path) -> None:
    write_raw_pairs(tmp_path / "raw", [("same", "same"), ("", "x")])
    with refused(65, r"cleaning leaves none of 2 pairs \(dropped: empty 1, copy 1\)\. Loosen section clean"):
        cleaned(tmp_path)
    write_raw_pairs(tmp_path / "raw", [GOOD, ("two", "zwei"), ("", "x")])
    (tmp_path / "raw/train.weights").write_text("0.05\n" * 3)
    with refused(65, r"cleaning leaves none of 3 pairs \(dropped: empty 1, by the weights 2\)"):
        cleaned(tmp_path, OFF, "weights")


@pytest.mark.skipif(not TRAPS.is_dir(), reason=f"no trap corpora in {TRAPS}")
@pytest.mark.parametrize(
    ("stem", "language", "pairs", "empty", "counts"),
    [
        ("newstest2008", "de", 2051, 0, {"ratio": 1, "copy": 11, "duplicate": 4}),
        ("newstest2009", "de", 2525, 0, {"ratio": 1, "copy": 3, "duplicate": 1}),
        ("opennmt10k", "de", 10_000, 1, {"ratio": 19, "copy": 14, "duplicate": 42}),
        ("nc5k", "fr", 5000, 13, {"ratio": 7, "copy": 6, "duplicate": 0}),
    ],
)
def test_each_rule_finds_what_was_counted(tmp_path: Path, stem: str, language: str, pairs: int, empty: int, counts: dict[str, int]) -> None:
    write_raw_pairs(tmp_path / "raw", list(read_pairs(TRAPS / f"{stem}.en", TRAPS / f"{stem}.{language}")), [])
    alone = {"ratio": RATIO, "copy": COPIES, "duplicate": DUPLICATES}
    for rule, count in counts.items():
        report, kept = cleaned(tmp_path, alone[rule], rule)
        assert report.pairs_in == pairs
        assert report.dropped == {"empty": empty, rule: count}
        assert len(kept) == pairs - empty - count


def test_a_pair_is_written_as_often_as_its_weight_says_after_repeats_are_dropped(tmp_path: Path) -> None:
    thrice = [(f"one two {number}", f"eins zwei {number}") for number in range(4)]
    half = [(f"three four {number}", f"drei vier {number}") for number in range(5)]
    write_raw_pairs(tmp_path / "raw", [*thrice, thrice[0], ("", "x"), *half])
    (tmp_path / "raw/train.weights").write_text("3\n" * 6 + "0.5\n" * 5)
    report, kept = cleaned(tmp_path)
    assert kept == [pair for pair in thrice for _ in range(3)] + half[1::2]
    assert (report.pairs_in, report.dropped["empty"], report.dropped["duplicate"]) == (11, 1, 1)
    assert (report.by_weights, report.pairs_out) == (14 - 9, 14)
    assert sum(report.lengths_out["en"]) == 14


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=200))
def test_the_number_of_written_pairs_is_the_sum_of_the_weights(tmp_path_factory: pytest.TempPathFactory, weights: list[float]) -> None:
    folder = tmp_path_factory.mktemp("weights")
    pairs = [(f"one {number}", f"eins {number}") for number in range(len(weights))]
    write_raw_pairs(folder / "raw", [GOOD, *pairs])
    (folder / "raw/train.weights").write_text("".join(f"{weight}\n" for weight in (1, *weights)))
    report, kept = cleaned(folder)
    assert report.pairs_out == len(kept) == pytest.approx(1 + sum(weights), abs=1)
    for pair, weight in zip(pairs, weights, strict=True):
        assert kept.count(pair) == pytest.approx(weight, abs=1)


def test_the_worst_share_of_the_pairs_that_are_left_is_dropped_and_counted(tmp_path: Path) -> None:
    pairs = [(f"one two {number}", f"eins zwei {number}") for number in range(10)]
    write_raw_pairs(tmp_path / "raw", [("", "x"), *pairs, pairs[0]])
    seen: list[Pair] = []

    def scores(found: Iterator[Pair]) -> Iterator[float]:
        for pair in found:
            seen.append(pair)
            yield float(pair[0][-1] in "258") + float(pair[0][-1] == "5")

    report, kept = cleaned(tmp_path, DEFAULT, scored={LOW_SCORE: partial(worst, 0.35, scores)})
    assert seen == pairs
    assert kept == [pair for pair in pairs if pair[0][-1] not in "258"]
    assert (report.dropped["low_score"], report.dropped["duplicate"], report.pairs_out) == (3, 1, 7)
    assert report.examples["low_score"] == [pairs[number] for number in (2, 5, 8)]
    assert list(report.dropped)[-1] == "low_score"


def test_near_duplicates_may_differ_in_numbers_and_not_in_words_vowel_signs_or_marks_alone(tmp_path: Path) -> None:
    pairs = [("Room 12!", "Zimmer 12!"), ("room twelve", "zimmer zwölf"), ("कि", "कि"), ("की", "की"), ("?", "!"), ("!", "?")]
    write_raw_pairs(tmp_path / "raw", [*pairs, ("room 7", "zimmer 7")])
    assert cleaned(tmp_path, NEAR)[1] == pairs


def test_a_pair_is_no_repeat_of_one_that_a_rule_before_has_dropped(tmp_path: Path) -> None:
    pairs = [("Good day!", "Guten Tag!"), ("good day", "guten tag"), ("greetings to you", "guten tag")]
    write_raw_pairs(tmp_path / "raw", pairs)
    assert cleaned(tmp_path, NEAR.model_copy(update={"drop_repeated_targets": True}))[1] == [pairs[0], pairs[2]]


def test_of_pairs_with_the_same_target_the_best_is_kept_and_a_rule_may_look_at_one_part_alone(tmp_path: Path) -> None:
    pairs = [("9 a", "x"), ("1 b", "x"), ("1 c", "x"), ("5 d", "y"), ("9 e", "y"), ("9 f", "z")]
    write_raw_pairs(tmp_path / "raw", [("", "dropped"), *pairs])
    (tmp_path / "raw/train.parts").write_text("old\n" * 4 + "new\n" * 3)

    def scores(found: Iterator[Pair]) -> Iterator[float]:
        return (float(source[0]) for source, _ in found)

    best = {"repeated_target": partial(repeated_targets, scores)}
    report, kept = cleaned(tmp_path, OFF, scored=best)
    assert (kept, report.dropped["repeated_target"]) == ([pairs[1], pairs[3], pairs[5]], 3)
    low = {"low": partial(below, 6, scores), **best}
    assert cleaned(tmp_path, OFF, "part", scored=low, part_of_rule={"low": "new"})[1] == [pairs[1], pairs[4], pairs[5]]
    with refused(78, "clean.scorers: the training pairs have no part 'news'"):
        cleaned(tmp_path, OFF, "none", scored=low, part_of_rule={"low": "news"})


def test_strings_of_both_sides_become_placeholders_and_a_share_of_the_other_pairs_gets_some(tmp_path: Path) -> None:
    names = ("Anna", "Berta", "Carla", "Dora", "Emma")
    train = [(f"{tag}Tom saw {one} and {other}.", f"Tom sah {one} und {other}.")
             for one in names for other in names for tag in ("", "<bt> ") for _ in range(20)]  # fmt: skip
    numbered = [("<bt> See <b>all</b> 42 at 10:45, Bob!", "Sieh <b>alle</b> 42 um Viertel vor elf, Bob!")]
    write_raw_pairs(tmp_path / "raw", train + numbered)
    settings = OFF.model_copy(update={"placeholders": 0.2})
    _, changed = cleaned(tmp_path, settings, tags={"<bt>"})
    assert cleaned(tmp_path, settings, "again", workers=2, tags={"<bt>"})[1] == changed
    assert changed.pop() == ("<bt> See ⟦1⟧all⟦2⟧ ⟦3⟧ at 10:45, Bob!", "Sieh ⟦1⟧alle⟦2⟧ ⟦3⟧ um Viertel vor elf, Bob!")
    different = [new for old, new in zip(train, changed, strict=True) if old != new]
    assert 140 < len(different) < 260  # Binomial with n = 1,000 and p = 0.2: mean 200, standard deviation 12.6; more than four either way.
    assert [source.startswith("<bt> ") for source, _ in changed] == [source.startswith("<bt> ") for source, _ in train]
    for source, target in different:
        symbols = re.findall("⟦.⟧", source)
        assert symbols == [*SYMBOLS[: len(symbols)]]
        assert sorted(re.findall("⟦.⟧", target)) == symbols
    assert [*read_pairs(tmp_path / "clean/test.en", tmp_path / "clean/test.de")] == [GOOD]
