"""Several directions in one corpus: tags, test sets, weights and rules of cleaning; and how a model of them is asked."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.corpus.corpora import written_raw
from tests.corpus.encoded import learnt_subword, write_binarized
from tests.corpus.test_cleaning import FOREIGN, OFF, OVERLAP
from tests.models.on_disk import SMALL, TEXT, VOCAB, translations, write_drawn, write_model
from tests.refusals import refused
from transformer_core import load, recipes
from transformer_core.cli import main
from transformer_core.corpus.cleaning.cleaner import clean_corpus
from transformer_core.corpus.sources.catalogue import check_direction, find_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, check_tags
from transformer_core.corpus.text import Pair, read_lines, read_pairs, write_lines
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_export import export_model
from transformer_core.decoding.translator import Translator
from transformer_core.evaluation.metrics import SCORING, score_sets
from transformer_core.evaluation.neural import with_comet
from transformer_core.models.architectures import build
from transformer_core.tasks import TRANSLATION
from transformer_core.training.devices import Rank
from transformer_core.training.validation import Validation

ENTRY = """
name: talk
languages: [en, de, ru]
directions: [en-de, de-en, ru-en]
licence:
note: ""
splits:
  train:
    - files: {en: {path: t.en}, de: {path: t.de}}
    - files: {en: {path: s.en}, ru: {path: s.ru}}
      tag: <web>
  valid: [{files: {en: {path: v.en}, de: {path: v.de}}}, {files: {en: {path: v.en}, ru: {path: v.ru}}}]
  test: [{files: {en: {path: v.en}, de: {path: v.de}}}]
"""
TEXTS = {
    "t.en": ["the dog sees a cat", "One house", "a black bird", "собака"], "t.de": ["der Hund sieht", "ein Haus", "ein Vogel", "Hund"],
    "s.en": ["a cat", "the green house"], "s.ru": ["кошка спит", "зелёный дом"],
    "v.en": ["one house", "my name"], "v.de": ["ein Haus", "mein Name"], "v.ru": ["один дом", "моё имя"],
}  # fmt: skip
TAGS = ["<2de>", "<2en>", "<web>"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpora").mkdir()
    for name, lines in TEXTS.items():
        write_lines(Path("corpora") / name, lines)


def reader(entry: str = ENTRY, source: str = "sources", target: str = "targets") -> SourceReader:
    Path("corpora/talk.yaml").write_text(entry)
    found = find_entry("talk")
    check_direction(found, source, target)
    return SourceReader(found, source, target, Fetcher("talk", Path("downloads")))


def raw(entry: str = ENTRY) -> tuple[Manifest, list[tuple[str, str]]]:
    manifest, splits = written_raw(reader(entry), Path("raw"))
    return manifest, splits["train"]


def test_a_tag_before_each_source_sentence_names_its_target_and_each_direction_has_a_test_set() -> None:
    manifest, train = raw()
    assert train[:1] + train[4:5] + train[8:] == [
        ("<2de> the dog sees a cat", "der Hund sieht"),
        ("<2en> der Hund sieht", "the dog sees a cat"),
        *((f"<2en> <web> {left}", right) for left, right in zip(TEXTS["s.ru"], TEXTS["s.en"], strict=True)),
    ]
    assert [*manifest.splits] == ["train", "valid", "test", "test_en-de", "test_de-en"]
    turned = [(f"<2en> {left}", right) for left, right in zip(TEXTS["v.de"], TEXTS["v.en"], strict=True)]
    assert list(read_pairs(Path("raw/test_de-en.sources"), Path("raw/test_de-en.targets"))) == turned
    assert manifest.splits["train"].directions == [("en", "de", 4), ("de", "en", 4), ("ru", "en", 2)]
    check_tags(reader(), TAGS)
    with refused(78, r"corpora/talk.yaml: tags that are not in bpe.user_symbols: <2de>, <2en>"):
        check_tags(reader(), ["<web>"])


def test_one_direction_of_such_a_corpus_has_no_tag_and_the_sources_of_its_languages() -> None:
    _, splits = written_raw(reader(f"{ENTRY}tests: {{test_ru: [{{sacrebleu: wmt13, direction: ru-en}}]}}", "de", "en"), Path("raw"))
    assert splits["train"] == list(zip(TEXTS["t.de"], TEXTS["t.en"], strict=True))
    assert [*splits] == ["train", "valid", "test"]


def test_text_of_another_such_entry_is_translated_by_the_model_of_its_direction() -> None:
    reader()
    source = "{translated: {corpus: talk, model: ../corpora, side: target}, direction: de-en}"
    Path("corpora/more.yaml").write_text(ENTRY.replace("talk", "more").replace("  train:", f"  train:\n    - {source}"))
    teachers = Teachers(lambda direction, *given: (Pair(pair.source, "-".join(direction).encode()) for pair in given[-1]), {})
    more = SourceReader(find_entry("more"), "sources", "targets", Fetcher("more", Path("downloads")))
    _, splits = written_raw(more, Path("raw"), teachers)
    assert splits["train"][-4:] == [(f"<2en> {text}", "de-en") for text in TEXTS["t.de"]]


def test_a_temperature_repeats_the_pairs_of_small_directions() -> None:
    raw(ENTRY.replace('note: ""', 'note: ""\ntemperature: 2'))
    assert list(map(float, read_lines(Path("raw/train.weights")))) == [1.0] * 8 + [pytest.approx(2**0.5)] * 2  # (2 / 4)^(1/2 - 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ru-en]", "ru-fr]", "directions: must be such as en-de of the languages en, de, ru, got en-de, de-en, ru-fr"),
        ("de-en, ru-en]", "de-en]", "splits.train.1.direction: must be one of en-de, de-en"),
        ("tag: <web>", "direction: en-ru", "splits.train.1.direction: must be one of en-de"),
        ("    - files: {en: {path: s.en}, ru: {path: s.ru}}", "    - sacrebleu: wmt13", "splits.train.1.direction: must be one of en-de"),
        ("directions: [en-de, de-en, ru-en]", "temperature: 5", "temperature: is only for entries with directions"),
    ],
)
def test_a_direction_that_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    with refused(78, re.escape(message)):
        reader(ENTRY.replace(old, new))


def test_pairs_are_cleaned_by_the_rules_of_their_languages_without_tags_and_hold_no_test_sentence_of_any_direction() -> None:
    write_lines(Path("corpora/s.en"), ["a cat", "My name"])
    manifest, _ = raw()
    directions = {split: record.directions for split, record in manifest.splits.items()}
    for settings, dropped in (
        (FOREIGN, {"собака"}),  # Russian is no foreign alphabet in ru-en alone.
        (OVERLAP, {"One house", "My name"}),
        (OFF.model_copy(update={"max_ratio": 1.4}), {"the dog sees a cat", "a black bird"}),  # 5 words and 3, 3 and 2.
    ):
        folder = Path(f"clean-{len(dropped)}-{settings.drop_overlap}")
        folder.mkdir()
        clean_corpus(Path("raw"), folder, "sources", "targets", settings, tags=TAGS, directions=directions)
        kept = {text for pair in read_pairs(folder / "train.sources", folder / "train.targets") for text in pair}
        assert {text for text in (*TEXTS["t.en"], "a cat", "My name") if not {text, f"<2de> {text}"} & kept} == dropped


def test_a_test_set_of_one_direction_is_scored_with_the_tokens_of_its_language() -> None:
    chinese, german = ["第一只狗睡在房子里。"] * 2, ["Der erste Hund schläft im Haus."] * 3
    sets = {"test": (german + chinese, german + chinese), "test_en-zh": (chinese, chinese), "test_en-de": (german, german)}
    splits = {f"test_en-{target}": {"directions": [("en", target, 2)]} for target in ("zh", "de")}
    of_all = {"directions": [record["directions"][0] for record in splits.values()]}
    found = score_sets(sets, german + chinese, {"source": "sources", "target": "targets", "splits": {"test": of_all, **splits}})
    assert [found[name].signatures["bleu"].split("|")[3] for name in sets] == ["tok:13a", "tok:zh", "tok:13a"]
    assert "paper_bleu" in found["test_en-de"].values
    assert "paper_bleu" not in found["test"].values


def test_a_model_of_several_directions_translates_to_the_language_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_model(build(SMALL, VOCAB + 2), Path("model"), TEXT, target="targets", user_symbols=["<2de>", "<2en>"])
    single = write_drawn(Path("single"))
    write_lines(Path("in"), ["the dog sees a cat", "", "a cat"])

    def translated(*options: str, model: Path = directory) -> tuple[int, str]:
        code = main(["translate", "--model", str(model), "--engine", "torch", "--scores", *options])
        out, err = capsys.readouterr()
        return code, out or err

    translator = Translator.load(directory)
    for to in ("de", "en"):
        best = translations(translator, [f"<2{to}> {line}" if line else "" for line in read_lines(Path("in"))], Search())
        scored = [f"{ranked[0].score:.4f}\t{ranked[0].log_probability:.4f}\t{ranked[0].text}\n" for ranked in best]
        assert translated("--to", to, "in") == (0, "".join(scored))
    assert translated("in") == (78, "--to: the model translates to de, en. Name one, for example de.\n")
    assert translated("--to", "fr", "in")[1].startswith("--to: the model translates to de, en, got fr. ")
    assert translated("--to", "fr", "in", model=single)[1] == "--to: the model translates to de alone, got fr. Leave it out.\n"
    with refused(78, "to: the model translates to de, en"):
        load(directory).translate(["a cat"])
    best, _, _ = translations(translator, ["<2en> a cat", "", ""], Search())
    assert load(directory, engine="torch").translate(["a cat"], to="en") == [best[0].text]
    export_model(directory, Path("out"))
    assert json.loads(Path("out/source_prefixes.json").read_text(encoding="utf-8")) == {"de": ["▁", "<2de>"], "en": ["▁", "<2en>"]}


def test_a_command_for_comet_gets_sources_without_tags(tmp_path: Path) -> None:
    """In a validation, and in the evaluation of test sets."""
    script = tmp_path / "metric.py"  # 1 for a source as it was without tags, else 0.
    script.write_text(
        "import json, sys\nfor line in sys.stdin:\n"
        f"    print(int(json.loads(line)['source'] in {TEXT!r}), end='\\n', flush=True) if line.strip() else None\n"
    )
    command = f"{sys.executable} {script}"
    subword = learnt_subword(TEXT, tmp_path / "spm.model", vocab_size=VOCAB + 2, user_symbols=["<2de>", "<web>"])
    sources = [f"<2de> {TEXT[0]}", f"<2de> <web> {TEXT[1]}"]
    write_binarized(tmp_path, *[[subword.encode(line) for line in side] for side in (sources, TEXT[2:4])], subword)
    settings = recipes.load("tatoeba").train.model_copy(update={"precision": "float32", "comet": command})
    model, rank, split = build(SMALL, subword.vocab_size), Rank(0, 1, torch.device("cpu")), open_split(tmp_path / "train")
    found = Validation(model, split, subword, TEXT[2:4], settings, TRANSLATION, rank, bool).scores()
    assert found is not None
    assert found["comet"] == 100
    with with_comet(SCORING, command, "evaluate.comet", lambda _: sources[:1]) as scoring:
        *_, comet = scoring.comparisons([""], ["a"], ["b"])
    assert comet.baseline == comet.candidate == 100
