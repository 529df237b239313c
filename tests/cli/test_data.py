"""transformer-core recipe and data."""

import json
import sys
from pathlib import Path

import pytest
from pandas import DataFrame
from sacrebleu.tokenizers import tokenizer_ko_mecab

from tests.cli.conftest import Call
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.corpus.sources.catalogue import load_entry
from transformer_core.corpus.text import read_lines, write_lines
from transformer_core.corpus.tokens.subword import train_subword
from transformer_core.data_plan import plan_data
from transformer_core.files import write_json, write_text


def test_recipes_are_listed_and_one_is_written_and_over_an_edited_one_if_forced(call: Call, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").touch()
    params = tmp_path / "params.yaml"
    lines = call("recipe").out.split("\n")[:-1]
    assert [tuple(line.split(maxsplit=1)) for line in lines] == [(name, recipes.description(name)) for name in recipes.names()]
    assert call("recipe", "tatoeba") == (0, "params.yaml is the recipe tatoeba. Next: dvc repro\n", "")
    follows = "transformer-core data new NAME FILE [FILE]"  # The recipe alone names no corpus.
    assert call("recipe", "own-data") == (0, f"params.yaml is the recipe own-data. Next: {follows}\n", "")
    assert call("recipe", "multi30k").code == 0
    assert params.read_bytes() == recipes.read("multi30k").encode()
    params.write_text(params.read_text(encoding="utf-8").replace("seed: 1", "seed: 2"), encoding="utf-8")
    assert call("recipe", "tatoeba", "--force").code == 0
    assert params.read_bytes() == recipes.read("tatoeba").encode()


def test_the_next_command_can_be_run_outside_the_environment(call: Call, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = own_files / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "dvc").touch(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert call("recipe", "tatoeba").out.endswith(" Next: .venv/bin/dvc repro\n")
    monkeypatch.setenv("PATH", f"/nowhere:{programs}")
    assert call("recipe", "tatoeba").out.endswith(" Next: dvc repro\n")


def test_outside_a_project_the_next_command_makes_one_first(call: Call, own_files: Path) -> None:
    (own_files / "dvc.yaml").unlink()
    commands = (("recipe", "tatoeba"), ("data", "new", "mine", "text.en", "text.de"), ("data", "update", "mine"))
    assert [call(*command).out.endswith(" Next: transformer-core new . && dvc repro\n") for command in commands] == [True] * 3
    assert call("new", ".").code == 0
    assert load_params(own_files / "params.yaml").download.corpus == "mine"
    assert call("data", "update", "mine").out.endswith(" Next: dvc repro\n")


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    """A project, as far as its commands look, with a text in two languages."""
    (tmp_path / "dvc.yaml").touch()
    write_lines(tmp_path / "text.en", [f"sentence {number}" for number in range(100)])
    write_lines(tmp_path / "text.de", [f"Satz {number}" for number in range(100)])
    return tmp_path


def test_own_files_become_a_corpus_and_a_params_file(call: Call, own_files: Path) -> None:
    shown = "".join(f"{number}: sentence {number - 1} | Satz {number - 1}\n" for number in (1, 2, 3))
    shown += "train: 80 of 100 pairs looked at are left (0 empty, 0 copies, 20 also in valid or test, 0 duplicates); 2 and 2"
    closing = "corpora/mine.yaml names 100 pairs of en and de; params.yaml trains on them. Next: dvc repro\n"
    done = call("data", "new", "mine", "text.en", "text.de")
    assert (done.code, done.out.startswith(shown), done.out.endswith(f"\n{closing}"), done.err) == (0, True, True, "")
    params = load_params(own_files / "params.yaml")
    assert (params.download.corpus, params.download.source, params.download.target) == ("mine", "en", "de")
    # Its few characters and words, and the bytes.
    assert (params.bpe.vocab_size, params.bpe.byte_fallback, params.publish.name) == (377, True, "mine-en-de")


def test_a_training_fits_the_minutes_that_are_given(call: Call, own_files: Path) -> None:
    trains = []
    for minutes in ("1e-9", "600"):
        assert call("data", "new", "mine", "text.en", "text.de", "--minutes", minutes, "--force").code == 0
        trains.append(load_params(own_files / "params.yaml").train)
    assert trains[0].updates == 50 < trains[1].updates
    assert [train.warmup for train in trains] == [400, 2000]  # The usual warm-up would not end.
    assert [(train.updates // train.save_every, train.validate_every // train.save_every) for train in trains] == [(50, 5)] * 2


def test_a_dataset_of_the_hub_is_taken_with_splits_and_languages(call: Call, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` reads a folder of Parquet files by its path as it reads one of the hub by its name."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", own_files / "cache")
    books = own_files / "own/books"
    configurations = "configs: [{config_name: en-de, data_files: [{split: train, path: t*}, {split: validation, path: v*}]}]"
    write_text(books / "README.md", f"---\n{configurations}\n---\n")
    for split, number in (("train", 60), ("validation", 7)):
        rows = [{"translation": {"en": f"{split} {row}", "de": f"Satz {row}"}} for row in range(number)]
        DataFrame(rows).to_parquet(books / f"{split}.parquet")
    done = call("data", "new", "books", "hf:own/books/en-de")
    assert (done.code, done.out.split("\n")[:3:2]) == (0, ["1: train 0 | Satz 0", "3: train 2 | Satz 2"])
    entry = load_entry(Path("corpora/books.yaml"))
    assert (entry.languages, entry.size and entry.size.pairs, len(entry.splits.test)) == (["en", "de"], 60, 1)
    assert str(entry.splits.valid[0].files).count("../data/hub/books/valid.parquet") == 2
    unknown = call("data", "new", "more", "hf:own/books/en-fr", "--force").refusal()
    assert unknown == (78, "hf:own/books/en-fr: BuilderConfig 'en-fr' not found. Available: ['en-de']")
    monkeypatch.setitem(sys.modules, "datasets", None)
    missing = call("data", "new", "more", "hf:own/books", "--force").refusal()
    assert missing == (78, "hf:own/books: datasets is not installed. Install it with: pip install datasets")


@pytest.mark.parametrize(
    ("line", "unspaced"),
    [
        ("第{}只狗睡在房子里。", True),
        ("第 {} 只 狗 睡 在 房子 里 。", False),
        ("{}匹の犬が家で眠っています。", True),
        ("สุนัข {} ตัวนอนหลับอยู่ในบ้าน", True),
        ("개 {}마리가 집에서 자고 있다.", False),
        ("{} Donaudampfschifffahrtsgesellschaft", False),
    ],
)
def test_rules_that_count_words_are_off_for_a_language_without_spaces(call: Call, own_files: Path, line: str, unspaced: bool) -> None:
    write_lines(own_files / "text.xx", [line.format(number) for number in range(100)])
    done = call("data", "new", "mine", "text.en", "text.xx")
    clean = load_params(own_files / "params.yaml").clean
    assert (done.code, clean.max_words, clean.max_ratio, clean.max_length_ratio) == (0, None if unspaced else 100, None, 4.0)
    rules = " xx: no spaces between words, so clean.max_words is null. Next: dvc repro"
    assert (rules in done.out) == unspaced


def test_a_target_whose_tokens_need_a_package_is_named(call: Call, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    write_lines(own_files / "text.ko", [f"개 {number}마리가 집에서 자고 있다." for number in range(100)])
    done = call("data", "new", "mine", "text.en", "text.ko")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "pip install 'sacrebleu[ko]'" in done.err


def test_the_vocabulary_holds_the_characters_of_the_text(call: Call, own_files: Path) -> None:
    """1,000 different Chinese characters in 100 lines, and others that the repairs replace."""
    lines = ["".join(chr(0x4E00 + 10 * number + place) for place in range(10)) for number in range(100)]
    write_lines(own_files / "text.zh", [f"{line}\u200b" for line in lines])
    assert call("data", "new", "mine", "text.en", "text.zh").code == 0
    bpe = load_params(own_files / "params.yaml").bpe
    english = set("sentence 0123456789")
    assert (bpe.vocab_size, bpe.character_coverage) == (2 * (1_000 + len(english)) + 256, 0.9995)
    train_subword([*lines, *(f"sentence {number}" for number in range(100))], own_files / "spm.model", bpe)


def test_languages_held_out_lines_and_files_of_a_split_can_be_said(call: Call, own_files: Path) -> None:
    (own_files / "text.en").rename(own_files / "a.txt")
    said = ("--source-language", "pt", "--target-language", "gl", "--test-lines", "9")
    by_files = "--valid", "a.txt", "text.de", "--force"
    for valid, entry_has in ((("--valid-lines", "7"), "path: mine.valid.gl"), (by_files, "path: ../a.txt")):
        assert call("data", "new", "mine", "a.txt", "text.de", *said, *valid).code == 0
        params = load_params(own_files / "params.yaml")
        assert (params.download.source, params.download.target) == ("pt", "gl")
        _, rest = (own_files / "corpora/mine.yaml").read_text(encoding="utf-8").split("valid:")
        assert entry_has in rest
        assert len(list(read_lines(own_files / "corpora/mine.test.pt"))) == 9


def test_a_file_outside_of_the_project_is_named(call: Call, own_files: Path) -> None:
    table = own_files.with_name("table.tsv")
    table.write_text("".join(f"sentence {number}\tSatz {number}\n" for number in range(9)), encoding="utf-8")
    done = call("data", "new", "mine", str(table), "--source-language", "en", "--target-language", "de_DE")
    assert f"9 pairs of en and de; params.yaml trains on them. Another machine needs {table} at the same place" in done.out


def test_an_update_leaves_params_alone_and_says_how_many_pairs_there_are(call: Call, own_files: Path) -> None:
    assert call("data", "new", "mine", "text.en", "text.de").code == 0
    params = own_files / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("seed: 1", "seed: 2"), encoding="utf-8")
    before = params.read_bytes()
    for language in ("en", "de"):
        write_lines(own_files / f"text.{language}", [f"{language} {number}" for number in range(2000)])
    assert call("data", "update", "mine") == (0, "corpora/mine.yaml: 2,000 pairs (100 before). Next: dvc repro\n", "")
    assert params.read_bytes() == before


def test_a_data_plan_names_files_sums_and_terms_and_fetches_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    done = call("data", "plan", "multi30k")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("multi30k, en to de: about 29,000 training pairs\nTerms: no licence is stated. Captions of")
    assert "train  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.de.gz\n" in done.out
    assert "fetched, sum: sha256 726e39b2fa9e..." in done.out
    assert "train.fr.gz" not in done.out
    assert all(path.is_symlink() for path in tmp_path.iterdir())


def test_the_plan_of_a_corpus_that_is_here_says_what_it_is_like(call: Call) -> None:
    train, nearest, valid, test = call("data", "plan", "tatoeba").out.splitlines()[-4:]
    assert train.startswith("train: 66,949 of 66,949 pairs looked at are left (0 empty, 0 copies, 0 also in valid or test, 0 duplicates);")
    assert nearest.startswith("nearest measured: everyday sentences (corpus tatoeba by its recipe), 66,949 pairs,")
    assert (valid[:19], test[:18]) == ("valid: 1,000 pairs,", "test: 1,000 pairs,")


def test_every_recipe_has_a_data_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (name for name in recipes.names() if not name.startswith("own-data")):
        plan = plan_data(recipes.load(name))
        assert {file.split for file in plan.files} == {"train", "valid", "test"}, name
        assert min(plan.disk.values()) >= 0 < sum(plan.disk.values()), name


def test_sums_that_were_locked_stand_in_the_plan(call: Call) -> None:
    train = "{https: {en: {url: 'https://a.example/t.en'}, de: {url: 'https://a.example/t.de'}}}"
    splits = f"{{train: [{train}], valid: [{{sacrebleu: wmt13}}], test: [{{sacrebleu: wmt14}}]}}"
    write_text(Path("corpora/web.yaml"), f"name: web\nlanguages: [en, de]\nlicence: CC0\nnote: ''\nsplits: {splits}\n")
    write_text(Path("params.yaml"), recipes.read("tatoeba").replace("corpus: tatoeba", "corpus: web"))
    write_json(Path("corpora/web.lock"), {"https://a.example/t.en": "ab" * 32})
    plan = json.loads(call("data", "plan", "--json").out)
    assert [file["checked_by"] for file in plan["files"][:2]] == ["sha256 abababababab...", "locked at the first fetch"]
    assert (plan["licence"], plan["pairs"], plan["disk"]) == ("CC0", None, {})
