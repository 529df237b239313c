import re
from pathlib import Path

import pytest

from tests.clone import bundled
from tests.refusals import refused
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES, entry_names, find_entry, load_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.text import SPLITS
from transformer_core.tasks import TREES

ENTRY = """\
name: tiny
languages: [en, de]
licence:
note: ""
splits:
  train:
    - files:
        en: {path: tiny.en}
        de: {path: tiny.de}
  valid:
    - sacrebleu: wmt13
  test:
    - https:
        en: {url: "https://example.org/t.en.gz", sha256: "WANTED_EN"}
        de: {url: "https://example.org/t.de.gz", sha256: "WANTED_DE"}
""".replace("WANTED_EN", "0" * 64).replace("WANTED_DE", "1" * 64)

pytestmark = pytest.mark.usefixtures("empty_directory")


def written(text: str, name: str = "tiny") -> Path:
    """An own entry."""
    path = Path(f"corpora/{name}.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_packaged_entries_are_valid_and_those_of_the_recipes() -> None:
    names = ["icon", "multi30k", "multi30k-student", "tatoeba", "wmt14-en-de", "wmt14-en-de-student", "wmt14-en-fr", "wsj"]
    assert entry_names() == names
    for name in names:
        found = find_entry(name)
        assert (found.entry.name, found.path) == (name, PACKAGED_ENTRIES / f"{name}.yaml")


@pytest.mark.parametrize("name", ["icon", "tatoeba"])
def test_a_bundled_corpus_is_small_and_has_its_licence_and_origin_beside_it(name: str) -> None:
    found = find_entry(name)
    assert sum(path.stat().st_size for path in (PACKAGED_ENTRIES / name).iterdir()) < 1_500_000
    assert found.entry.licence
    for text in ("LICENSE", "README.md"):
        # CC BY-SA 4.0 calls itself Attribution-ShareAlike 4.0 in its own text.
        words = (PACKAGED_ENTRIES / name / text).read_text(encoding="utf-8").replace("Attribution-ShareAlike", "CC BY-SA")
        assert found.entry.licence in words
    for sources in found.entry.sources.values():
        assert all(file.sha256 for source in sources for file in (source.files or {}).values())


def test_each_sentence_of_the_bundled_corpus_is_in_one_pair_so_that_no_link_leads_from_train_to_test() -> None:
    """Whatever a sentence's case and punctuation."""
    words = re.compile(r"[\w'\u2019-]+").findall
    found: dict[str, list[str]] = {"en": [], "de": []}
    for split in SPLITS:
        lines = bundled(f"tatoeba/{split}.tsv", None)
        assert len(lines) >= 1_000
        for line in lines:
            pair = line.removesuffix("\n").split("\t")
            assert all(side and side == " ".join(side.split()) for side in pair)
            for language, side in zip(found, pair, strict=True):
                found[language].append(" ".join(words(side.lower())))
    for language, sentences in found.items():
        assert len(set(sentences)) == len(sentences), language


def test_a_packaged_entry_has_its_trees_beside_it_or_in_the_users_folder() -> None:
    Path("corpora/wsj/22").mkdir(parents=True)
    Path("corpora/wsj/22/wsj_2200.mrg").write_text("( (NP (NN dog)) )\n", encoding="utf-8")
    found = {}
    for name, source in (("icon", "id"), ("wsj", "en")):
        reader = SourceReader(find_entry(name), source, TREES, Fetcher(name, Path("downloads")))
        found[name] = [path for valid in reader.found.entry.sources["valid"] for path in reader.local_files(valid)]
    assert found == {"icon": [PACKAGED_ENTRIES / "icon/dev.txt.xz"], "wsj": [Path("corpora/wsj/22/wsj_2200.mrg")]}


def test_an_own_entry_goes_before_a_packaged_one() -> None:
    path = written(ENTRY.replace("name: tiny", "name: multi30k"), "multi30k")
    assert find_entry("multi30k").path == path


@pytest.mark.parametrize(("name", "remedy"), [("multi30", "Did you mean multi30k or multi30k-student?"), ("zzz", "Known: ")])
def test_an_unknown_name_is_refused_with_similar_ones(name: str, remedy: str) -> None:
    with refused(78, rf"download\.corpus: no corpus is called .*{re.escape(remedy)}"):
        find_entry(name)


# A text of ENTRY, the text that replaces it, and a part of the message.
TRANSLATED = "translated: {corpus: news, model: ../teacher, side: target}"
FAULTS = [
    ("splits:\n", "tests: {newstest: [mtdata: x]}\nsplits:\n", "tiny.yaml: tests: must have names such as test_2017, with "),
    ("name: tiny", "name: other", "tiny.yaml: name: must be the file's name, 'tiny', got 'other'"),
    ("languages: [en, de]", "languages: en", "tiny.yaml: languages: must be a list of languages, got 'en'"),
    ("- files:", "- fils:", "tiny.yaml: splits.train.0.fils: unknown key. Did you mean 'files'?"),
    ("de: {path: tiny.de}", "fr: {path: tiny.fr}", "splits.train.0.files: must name the languages en, de, got en, fr"),
    ("- sacrebleu: wmt13", "sacrebleu", "splits.valid: must be a list of sources, each one of files, https"),
    ("- sacrebleu: wmt13", "- sacrebleu: wmt13\n      mtdata: x", "splits.valid.0: must be exactly one of files, https, "),
    ("- sacrebleu: wmt13", "- sacrebleu: wmt13\n      weight: 2", "splits.valid: weight is allowed in train only"),
    ("- sacrebleu: wmt13", "- sacrebleu: wmt13\n      name: new", "splits.valid: name is allowed in train only"),
    ("- sacrebleu: wmt13", "- sacrebleu: wmt13\n      weight: 0", "splits.valid.0.weight: must be greater than 0, got 0"),
    ("1" * 64, "1" * 63, "splits.test.0.https.de.sha256: must be a SHA-256 sum: 64 hexadecimal digits"),
    ("https://example.org/t.en.gz", "ftp://x/t.en", "splits.test.0.https.en.url: must be an address that begins with https://"),
    ("- sacrebleu: wmt13", f"- {TRANSLATED}", "splits.valid: translated is allowed in train only"),
    ("- sacrebleu: wmt13", f"- {TRANSLATED}".replace("target", "both"), "0.translated.side: must be 'target' or 'source', got 'both'"),
    ("- sacrebleu: wmt13", "- {sacrebleu: wmt13, tag: <b t>}", "splits.valid.0.tag: must be a symbol without white space"),
    (ENTRY[ENTRY.index("  valid:") : ENTRY.index("  test:")], "", "tiny.yaml: splits.valid: is missing"),
]


def test_an_error_in_an_entry_names_file_and_key() -> None:
    path = written(ENTRY)
    assert [source.kinds for source in load_entry(path).splits.test] == [["https"]]
    for old, new, message in FAULTS:
        assert old in ENTRY
        written(ENTRY.replace(old, new))
        with refused(78) as caught:
            load_entry(path)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_source_of_a_direction_has_both_of_its_languages() -> None:
    splits = "".join(f"  {split}: [{{direction: en-de, files: {{en: {{path: tiny.en}}}}}}]\n" for split in ("train", "valid", "test"))
    path = written(f"name: tiny\nlanguages: [en, de, fr]\ndirections: [en-de, en-fr]\nlicence:\nnote: ''\nsplits:\n{splits}")
    with refused(78, "splits.train.0.files: must name the languages de, en, got en"):
        load_entry(path)


def test_text_of_one_language_has_no_validation() -> None:
    news = "name: news\nlanguages: [de]\nlicence:\nnote: ''\nsplits:\n  train:\n    - files: {de: {path: news.de}}\n"
    assert [*load_entry(written(news, "news")).sources] == ["train"]
    path = written(f"{news}  valid:\n    - sacrebleu: wmt13\n", "news")
    with refused(78, r"news.yaml: splits.valid: is only for entries of two or more languages$"):
        load_entry(path)
