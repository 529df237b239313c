"""The stages from download to binarize, in an empty working directory."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from tests.embedding_metric import write_checkpoint
from tests.flows.stages import set_params, stage_here
from tests.serving import Private, serving
from tests.waiting import free_port
from transformer_core.cli import main
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.text import read_pairs, splits_of, write_lines, write_pairs
from transformer_core.corpus.tokens.binary import open_split, read_meta
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.external import Scorer
from transformer_core.files import read_json

STAGES = ("download", "clean", "bpe", "binarize")
SUBJECTS = (("the dog", "der Hund"), ("the cat", "die Katze"), ("a child", "ein Kind"), ("my mother", "meine Mutter"))
VERBS = (("sees", "sieht"), ("knows", "kennt"), ("loves", "liebt"), ("finds", "findet"), ("hears", "hört"))
NUMBERS = [(f"{number} houses", f"{number} Häuser") for number in range(2, 7)]
WORDS = list(product(SUBJECTS, VERBS, NUMBERS))
PAIRS = [(f"{subject[0]} {verb[0]} {houses[0]}", f"{subject[1]} {verb[1]} {houses[1]}") for subject, verb, houses in WORDS]
FOLDERS = {"download": "raw", "clean": "clean", "bpe": "bpe", "binarize": "binarized"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with params.yaml, the corpus `own` of 100 pairs, and the outputs of all stages."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_pairs(Path("own.en"), Path("own.de"), PAIRS)
        new_entry("own", Path("own.en"), Path("own.de"))
        set_params(download={"corpus": "own"}, bpe={"vocab_size": 90})
        run_all()
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it without outputs as the working directory."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data", ".state"))


def take(prepared: Path, last: str) -> None:
    """The outputs of the stages up to the last, from the prepared directory."""
    for name in STAGES[: STAGES.index(last) + 1]:
        shutil.copytree(prepared / "data" / FOLDERS[name], Path("data") / FOLDERS[name])


def run_all() -> None:
    for name in STAGES:
        stage_here(name, code=0)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_two_own_files_become_token_ids_that_read_back_as_their_text(place: Path, prepared: Path) -> None:
    take(prepared, "binarize")
    subword = Subword.load(Path("data/bpe/spm.model"))
    read_back = set()
    for split, pairs_in_split in {"train": 80, "valid": 10, "test": 10}.items():
        meta, opened = read_meta(Path("data/binarized") / split), open_split(Path("data/binarized") / split)
        assert (meta.vocabulary_hash, meta.pairs) == (subword.hash, pairs_in_split)
        pairs = [(subword.decode(source), subword.decode(target)) for source, target in zip(opened.source, opened.target, strict=True)]
        sides = [Path(f"data/clean/{split}.{language}").read_text(encoding="utf-8").split("\n")[:-1] for language in ("en", "de")]
        assert pairs == list(zip(*sides, strict=True))
        read_back.update(pairs)
    assert read_back == set(PAIRS)
    assert files_below(place / "data/bpe") == ["spm.model"]


@pytest.mark.usefixtures("empty_directory")
def test_pronunciations_keep_their_pairs_and_a_phoneme_is_one_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a copy, of a word that test has with another pronunciation, and of one that is a part of a phoneme's name."""
    kept = [("CHURCH", "CH ER1 CH"), ("READ", "R EH1 D"), ("RED", "R EH1 D"), ("B", "B"), ("NEW OXEN", "N UW1 AA1 K S AH0 N")]
    for name, pairs in (("train", [*kept, ("READ", "R IY1 D")]), ("test", [("READ", "R IY1 D")])):
        write_lines(Path(f"{name}.tsv"), ["\t".join(pair) for pair in pairs])
    sides = ("--source-language", "en", "--target-language", "ph", "--valid", "test.tsv", "--test", "test.tsv")
    assert main(["data", "new", "cmu", "train.tsv", *sides, "--symbols"]) == 0
    assert "\nen: symbols are characters\nph: symbols are strings between spaces\n" in capsys.readouterr().out
    run_all()
    assert list(read_pairs(Path("data/clean/train.en"), Path("data/clean/train.ph"))) == kept
    assert read_json(Path("data/raw/manifest.json"))["metrics"] == ["word-error-rate", "symbol-error-rate"]
    subword = Subword.load(Path("data/bpe/spm.model"))
    # Four special ones, the characters of the words, of which the space is also their beginning, and the phonemes.
    assert subword.vocab_size == 4 + len(set("".join(word for word, _ in kept))) + len(set(" ".join(sound for _, sound in kept).split()))
    for word, sound in kept:
        assert [subword.pieces[token] for token in subword.encode(word)] == [*f" {word}".replace(" ", "\u2581"), "</s>"]
        tokens = subword.of_target.encode(sound)
        assert (len(tokens), subword.decode(tokens)) == (len(sound.split()) + 1, sound)


@pytest.mark.usefixtures("place")
def test_a_further_test_set_goes_through_all_stages_and_train_has_none_of_its_pairs() -> None:
    write_pairs(Path("more.en"), Path("more.de"), [PAIRS[0], ("a new house", "ein neues Haus")])
    with Path("corpora/own.yaml").open("a", encoding="utf-8") as entry:
        entry.write("tests: {test_more: [{files: {en: {path: ../more.en}, de: {path: ../more.de}}}]}\n")
    run_all()
    train = Path("data/clean/train.en").read_text().split("\n")
    assert PAIRS[0][0] not in train
    assert splits_of(Path("data/binarized")) == ["train", "valid", "test", "test_more"]
    assert len(open_split(Path("data/binarized/test_more")).source) == 2


def test_running_again_gives_the_same_bytes_in_either_direction(place: Path, prepared: Path) -> None:
    contents = [bytes_of(prepared / "data")]
    for source, target in (("en", "de"), ("de", "en")):
        set_params(download={"source": source, "target": target})
        run_all()
        contents.append(bytes_of(place / "data"))
    assert contents[0] == contents[1]
    assert contents[2].keys() == contents[0].keys()
    assert json.loads(contents[2]["raw/manifest.json"])["source"] == "de"


def test_long_training_pairs_are_left_out_and_lines_with_unknown_characters_counted(place: Path, prepared: Path) -> None:
    take(prepared, "bpe")
    long = ("the dog " * 100, "der Hund " * 100)
    for split, pairs in (("train", [("the dog", "der Hund"), long]), ("test", [("the {dog}", "der Hund"), (long[0], "")])):
        write_pairs(place / f"data/clean/{split}.en", place / f"data/clean/{split}.de", pairs)
    done = stage_here("binarize")
    assert done.stdout.endswith("characters that the vocabulary lacks: in 50.00% of the sources and 0.00% of the targets of test\n")
    train, test = (read_meta(Path("data/binarized") / split) for split in ("train", "test"))
    assert (train.pairs, train.dropped_too_long) == (1, 1)
    assert (test.pairs, test.dropped_too_long, test.source_unknown, test.target_unknown) == (2, 0, 1, 0)
    assert open_split(Path("data/binarized/test")).target[1].tolist() == [3]


def web_entry(stem: str, checked_by: str = f', sha256: "{"0" * 64}"') -> None:
    """Corpus `own`, whose text is at an address."""
    sides = "".join(f'\n        {language}: {{url: "{stem}.{language}"{checked_by}}}' for language in ("en", "de"))
    Path("corpora/own.yaml").write_text(
        f"name: own\nlanguages: [en, de]\nlicence:\nnote: ''\nsplits:\n  train:\n    - https:{sides}\n"
        f"  valid:\n    - https:{sides}\n  test:\n    - https:{sides}\n"
    )


RAW_MANIFEST, GERMAN, VOCABULARY = map(Path, ("data/raw/manifest.json", "data/raw/train.de", "data/bpe/spm.model"))
# A mistake of a user, the stage that finds it, its exit code, and a pattern of its line on standard error.
MISTAKES: dict[str, tuple[Callable[[], object], str, int, str]] = {
    "changed file": (lambda: write_lines(Path("own.de"), ["anders"] * 100), "download", 65, "own.de: wrong sha256: wanted "),
    "wrong language": (
        lambda: set_params(download={"target": "fr"}), "download", 78,
        "params.yaml: download.target: corpora/own.yaml has no language 'fr'. It has en, de.",
    ),
    "no network": (
        lambda: web_entry(f"http://127.0.0.1:{free_port()}/train"), "download", 69,
        r"http://127.0.0.1:.*no connection \(3 tries\)\. Try again, or put the file at MIRROR/own/train\.en and set machine\.mirror\.",
    ),
    "no manifest": (RAW_MANIFEST.unlink, "clean", 65, f"{RAW_MANIFEST}: no such file. Make it with: dvc repro download\n"),
    "no vocabulary": (VOCABULARY.unlink, "binarize", 65, f"{VOCABULARY}: no such file. Make it with: dvc repro bpe\n"),
    "unequal raw": (lambda: write_lines(GERMAN, ["zu kurz"] * 99), "clean", 65, f"data/raw/train.en: 100 lines, but {GERMAN} has 99"),
    "large vocabulary": (lambda: set_params(bpe={"vocab_size": 5000}), "bpe", 78, "params.yaml: bpe.vocab_size: this corpus allows at "),
    "short sentences": (
        lambda: set_params(binarize={"max_tokens": 2}), "binarize", 78,
        "params.yaml: binarize.max_tokens: each of 80 training pairs is longer than 2. Raise it.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_one_line_and_leaves_the_outputs_as_they_were(mistake: str, place: Path, prepared: Path) -> None:
    make, stage, code, line = MISTAKES[mistake]
    take(prepared, "download" if stage == "download" else STAGES[STAGES.index(stage) - 1])  # Of a download, its own earlier outputs.
    make()
    before = bytes_of(place / "data")
    ended = stage_here(stage, code=code)
    assert re.match(line, ended.stderr)
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    assert bytes_of(place / "data") == before
    assert json.loads((place / f".state/exit/{stage}.json").read_text())["code"] == code
    assert [name for name in files_below(place / ".state") if "downloads" in name] == []


def test_what_a_killed_download_has_unpacked_is_removed(place: Path) -> None:
    with Fetcher("own", place / ".state/downloads").scratch() as left:
        write_lines(Path(left, "0-train.en"), ["unpacked"])
        stage_here("download", code=0)
        assert not Path(left).exists()


@pytest.mark.parametrize(("password", "stem", "code"), [("s3cret", "train", 0), ("s3cret", "none", 78), ("wr0ng", "train", 78)])
def test_a_secret_is_in_no_file_and_no_output(place: Path, monkeypatch: pytest.MonkeyPatch, password: str, stem: str, code: int) -> None:
    monkeypatch.setenv("SOME_TOKEN", "t0ken")
    write_pairs(place / "served/train.en", place / "served/train.de", PAIRS)
    with serving(partial(Private, place / "served", "me:s3cret")) as host:
        web_entry(f"http://me:{password}@{host}/{stem}", checked_by="")
        ended = stage_here("download", code=code)
    written = [path for path in place.rglob("*") if path.is_file() and path != place / "corpora/own.yaml"]
    assert (place / "corpora/own.lock" in written) == (code == 0)
    for secret in (password, "t0ken"):
        assert secret not in ended.stdout + ended.stderr
        assert [path for path in written if secret.encode() in path.read_bytes() or secret in path.name] == []


def test_the_tags_of_a_corpus_hide_nothing_from_cleaning_and_are_symbols(place: Path, prepared: Path) -> None:
    take(prepared, "download")
    manifest = place / "data/raw/manifest.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document["origin"].append({"split": "train", "model": "teacher", "tag": "<bt>"})
    manifest.write_text(json.dumps(document), encoding="utf-8")
    for language, line in (("en", "<bt> Haus\n"), ("de", "Haus\n")):
        with (place / f"data/raw/train.{language}").open("a", encoding="utf-8") as file:
            file.write(line)
    assert "80 of 101 training pairs (dropped: copy 1, overlap 20)" in stage_here("clean").stdout
    ended = stage_here("bpe", code=78)
    message = "params.yaml: bpe.user_symbols: must have <bt>, the tag of sentences of data/raw, got []"
    assert ended.stderr == f"{message}. Add it, so that it is one token.\n"
    assert files_below(place / "data/bpe") == []
    set_params(bpe={"user_symbols": ["<bt>"]})
    stage_here("bpe", code=0)


def test_pairs_below_the_threshold_of_a_command_are_dropped_counted_and_scored_once(place: Path, prepared: Path) -> None:
    take(prepared, "download")
    command = write_checkpoint(place / "metric.pt")
    set_params(clean={"scorers": [{"command": command, "threshold": 0.1}], "drop_overlap": False})
    stage_here("clean", code=0)
    report, kept = read_json(Path("data/clean/report.json")), [*read_pairs(Path("data/clean/train.en"), Path("data/clean/train.de"))]
    pairs = [*read_pairs(Path("data/raw/train.en"), Path("data/raw/train.de"))]
    with Scorer(command, "clean.scorers.0") as scorer:
        scores = scorer.scores(*zip(*pairs, strict=True))
    expected = [pair for pair, score in zip(pairs, scores, strict=True) if score >= 0.1]
    assert 0 < len(expected) < len(pairs)
    assert kept == expected
    assert report["dropped"]["below_threshold_1"] == len(pairs) - len(expected)
    assert len(report["examples"]["below_threshold_1"]) == 5
    (place / "metric.pt").unlink()  # The scores are kept: another threshold needs no metric.
    set_params(clean={"scorers": [{"command": command, "threshold": -1.0}]})
    assert f"{len(pairs)} of {len(pairs)} training pairs" in stage_here("clean").stdout
    write_checkpoint(place / "metric.pt")
    half, lines = len(pairs) // 2, [{"command": command, "threshold": 0.1, "part": "second"}, {"command": command, "threshold": -1.0}]
    write_lines(Path("data/raw/train.parts"), ["first"] * half + ["second"] * half)
    write_lines(Path("data/raw/train.de"), [pairs[0][1], *(target for _, target in pairs[1:-1]), pairs[0][1]])
    set_params(clean={"scorers": lines, "drop_repeated_targets": True})
    stage_here("clean", code=0)
    dropped = read_json(Path("data/clean/report.json"))["dropped"]
    assert (dropped["below_threshold_1"] <= half, dropped["below_threshold_2"], dropped["repeated_target"]) == (True, 0, 1)


def test_a_vocabulary_from_elsewhere_must_have_the_symbols_and_the_size_of_this_one(place: Path, prepared: Path) -> None:
    take(prepared, "clean")
    shutil.copytree(prepared / "data/bpe", place / "pretrained/first")
    for changes, line in (
        ({"init_from": "frist"}, "init_from: pretrained/frist holds no spm.model. See pretrained/README.md.\n"),
        ({"init_from": "first", "user_symbols": ["<bt>"]}, "init_from: pretrained/first/spm.model has no symbol <bt>. "),
        ({"user_symbols": [], "lowercase": True}, "lowercase: must be false of pretrained/first/spm.model, got true"),
        ({"lowercase": False, "vocab_size": 80}, "vocab_size: 80, but pretrained/first/spm.model has 90 subwords. Set it to 90.\n"),
    ):
        set_params(bpe=changes)
        assert stage_here("bpe", code=78).stderr.startswith(f"params.yaml: bpe.{line}")
        assert files_below(place / "data/bpe") == []


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)} if folder.exists() else {}


def test_a_treebank_becomes_words_and_one_token_for_each_symbol_of_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nouns = ["dog", "cat", "child", "mother", "house", "street", "garden", "river"]
    trees = [
        f"( (S (NP-SBJ-{i} (DT the) (NN {one}))\n  (VP (VBZ sees) (NP (DT a) (NN {two})) (NP (-NONE- *-{i}))) (. .)) )\n"
        for i, (one, two) in enumerate(product(nouns, nouns))
    ]
    Path("corpora").mkdir()
    Path("corpora/bank.mrg").write_text("\n".join(trees))
    Path("corpora/dev.mrg").write_text("\n".join(trees[:5]))
    splits = "{train: [{trees: bank.mrg}], valid: [{trees: dev.mrg}], test: [{trees: dev.mrg}]}"
    Path("corpora/bank.yaml").write_text(f"name: bank\nlanguages: [en, tree]\nlicence:\nnote: ''\nsplits: {splits}\n")
    clean, decode = {"max_words": None, "max_ratio": None}, {"engine": "torch"}
    set_params(download={"corpus": "bank", "target": "tree"}, clean=clean, bpe={"vocab_size": 70}, train={"best_by": "f1"}, decode=decode)
    run_all()
    assert Path("data/raw/test.tree").read_text().startswith("(S (NP (DT the) (NN ")
    symbols = "(S (NP XX XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert set(Path("data/clean/train.tree").read_text().splitlines()) == {symbols}
    subword, targets = Subword.load(Path("data/bpe/spm.model")), open_split(Path("data/binarized/test")).target
    assert [len(targets[number]) for number in range(5)] == [len(symbols.split()) + 1] * 5
    assert subword.decode(targets[0]) == symbols
    for tree, fault in (("(S (NN dog))\n", "the tree's words are not those of the source: 'dog'"), ("(S (NN dog)\n", "not a tree: ")):
        Path("data/raw/test.tree").write_text(tree * 5)
        assert f"data/raw/test.tree:1: {fault}" in stage_here("clean", code=65).stderr
