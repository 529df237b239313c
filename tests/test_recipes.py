import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.refusals import refused
from transformer_core import recipes
from transformer_core.config import Model, load_params, resolve
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES
from transformer_core.corpus.sources.local_corpus import new_entry
from transformer_core.corpus.text import read_lines, write_lines
from transformer_core.corpus.tokens.subword import train_subword
from transformer_core.errors import UserError
from transformer_core.presets import TABLE_3, TransformerSize

BASE = TransformerSize(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1)
BIG = TransformerSize(layers=6, d_model=1024, d_ff=4096, heads=16, d_k=64, d_v=64, dropout=0.3)
params_of = cache(recipes.load)


def test_every_recipe_loads_with_a_model_and_a_corpus_and_says_what_it_is_for() -> None:
    faults = []
    for name in recipes.names():
        params, words = params_of(name), recipes.description(name)
        if not name.startswith("own-data") and not (PACKAGED_ENTRIES / f"{params.download.corpus}.yaml").is_file():
            faults.append(f"{name}: no corpus {params.download.corpus}")
        if not 20 < len(words) < 120 or "\n" in words or words.endswith("et al"):
            faults.append(f"{name}: description {words!r}")
    assert not faults


@pytest.mark.parametrize(
    ("name", "vocab_size", "size", "updates", "averaged"),
    [
        ("wmt14-en-de-base", 37_000, BASE, 100_000, 5),
        ("wmt14-en-de-big", 37_000, BIG, 300_000, 20),
        ("wmt14-en-fr-base", 32_000, BASE, 100_000, 5),
        ("wmt14-en-fr-big", 32_000, replace(BIG, dropout=0.1), 300_000, 20),
    ],
)
def test_the_papers_recipes_have_the_papers_numbers(name: str, vocab_size: int, size: TransformerSize, updates: int, averaged: int) -> None:
    params = params_of(name)
    assert resolve(params.model) == size
    assert params.bpe.vocab_size == vocab_size
    train = params.train
    assert (train.updates, train.tokens_per_update, train.warmup, train.learning_rate_factor) == (updates, 25_000, 4_000, 1.0)
    assert (train.adam_beta1, train.adam_beta2, train.adam_epsilon, train.label_smoothing) == (0.9, 0.98, 1e-9, 0.1)
    assert (train.cooldown, train.bpe_dropout, train.passes) == (0, 0, 1)
    assert (params.average.of, params.average.count) == ("last", averaged)
    decode = params.decode
    assert (decode.engine, decode.precision, decode.penalty) == ("torch", "float32", "wu")
    assert (decode.beam, decode.alpha, decode.max_extra) == (4, 0.6, 50)


def test_the_recipe_of_the_papers_parser_has_its_numbers() -> None:
    """Section 6.3, trained on WSJ alone."""
    params = params_of("wsj-parsing")
    assert resolve(params.model) == replace(BASE, layers=4, d_model=1_024, d_k=128, d_v=128)
    assert params.bpe.vocab_size == 16_000
    train, decode = params.train, params.decode
    assert (train.tokens_per_update, train.warmup, train.learning_rate_factor, train.label_smoothing) == (25_000, 4_000, 1.0, 0.1)
    assert (decode.penalty, decode.beam, decode.alpha, decode.max_extra) == ("wu", 21, 0.3, 300)


def test_every_recipe_reaches_its_highest_learning_rate() -> None:
    assert [name for name in recipes.names() if params_of(name).train.warning] == []


def test_a_name_cannot_lead_out_of_the_package() -> None:
    with pytest.raises(UserError, match="no such recipe"):
        recipes.read("../recipes/tatoeba")


@pytest.mark.parametrize("edit", [("  updates: ", "  updates: 1"), ("# The default", "# My default"), ("download:", "download: [")])
def test_an_edited_params_file_is_kept(edit: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    edited = recipes.read("tatoeba").replace(*edit)
    assert edited != recipes.read("tatoeba")
    path.write_text(edited, encoding="utf-8")
    with refused(78, "differs from every recipe and would be lost"):
        recipes.write(recipes.read("multi30k"), path, force=False)
    assert path.read_text(encoding="utf-8") == edited


@pytest.mark.parametrize("force", [True, False])
def test_the_users_machine_section_is_no_edit_and_is_carried_over(force: bool, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    mine = "machine:\n  # two processes\n  devices: 2\n\n  mirror: /mirror\n"
    default = recipes.read("tatoeba")
    path.write_text(default[: default.index("machine:")] + mine, encoding="utf-8")
    recipes.write(recipes.read("multi30k"), path, force=force)
    multi30k = recipes.read("multi30k")
    assert path.read_text(encoding="utf-8") == multi30k[: multi30k.index("machine:")] + mine
    path.write_text("machine:\n  devices: 3\ntrain:\n  updates: 3\n", encoding="utf-8")  # Wherever the section stands.
    recipes.write(multi30k, path, force=True)
    assert (load_params(path).machine.devices, load_params(path).train.updates) == (3, params_of("multi30k").train.updates)


def test_own_data_fills_in_names_and_does_not_count_the_words_of_a_language_without_spaces_and_keeps_every_other_line() -> None:
    named = {"  corpus: mine", "  source: pt", "  target: zh", "  name: mine-pt-zh"}
    uncounted = {"  max_words:"}
    for count_words, changed in ((True, named), (False, named | uncounted)):
        filled = recipes.for_own_data("mine", "pt", "zh", pairs=1_000_000, characters=200, words=90_000, count_words=count_words)
        lines = zip(recipes.read("own-data").split("\n"), filled.split("\n"), strict=True)
        assert {new for old, new in lines if old != new} == changed


@pytest.mark.parametrize(
    ("pairs", "characters", "words", "vocabulary"),
    [
        (20, 80, 5_000, 656),
        (4_000, 80, 5_000, 1_256),
        (32_000, 80, 20_000, 8_000),
        (1_000_000, 80, 20_000, 8_000),
        (4_600, 1_168, 20_000, 2_592),  # Korean: half of the subwords are not single syllables.
        (50_000, 5_000, 100_000, 8_000),
        (3_600, 40, 60, 356),  # Letters between spaces, as in a lexicon: there are few strings.
    ],
)
def test_the_vocabulary_is_as_large_as_the_corpus_allows(pairs: int, characters: int, words: int, vocabulary: int) -> None:
    assert f"  vocab_size: {vocabulary}\n" in recipes.for_own_data("mine", "en", "de", pairs, characters, words)


def test_a_lexicon_gets_a_vocabulary_that_can_be_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["".join(letters) for letters in itertools.product("bdgklmnprst", "aeiou", "bdgklmnprst")]
    for language, separator in (("en", ""), ("ph", " ")):
        write_lines(tmp_path / f"lexicon.{language}", [separator.join(word.upper() if separator else word) for word in words])
    entry = new_entry("lexicon", tmp_path / "lexicon.en", tmp_path / "lexicon.ph")
    (tmp_path / "params.yaml").write_text(recipes.for_entry(entry), encoding="utf-8")
    lines = [line for language in ("en", "ph") for line in read_lines(tmp_path / f"lexicon.{language}")]
    train_subword(lines, tmp_path / "spm.model", load_params(tmp_path / "params.yaml").bpe)


def test_a_corpus_of_few_pairs_gets_a_narrower_model_and_larger_updates(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(recipes.for_own_data("mine", "en", "de", 49_999, characters=80, words=5_000), encoding="utf-8")
    few, many = load_params(tmp_path / "params.yaml"), params_of("own-data")
    size = resolve(few.model)
    assert isinstance(size, TransformerSize)
    assert (size.depths, size.d_model, size.d_ff, size.heads, size.d_k, size.dropout) == ((4, 4), 128, 256, 4, 32, 0.3)
    assert few.train.microbatches == many.train.microbatches == 4
    assert few.average.count == few.train.keep
    changed = {"updates", "tokens_per_update", "tokens_per_microbatch", "learning_rate_factor", "save_every", "keep"}
    assert few.train.model_dump(exclude=changed) == many.train.model_dump(exclude=changed)
    assert "d_model" not in recipes.for_own_data("mine", "en", "de", 50_000, characters=80, words=5_000)


def test_few_pairs_of_long_sentences_get_the_settings_that_read_them(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(recipes.for_own_data("mine", "en", "de", 27_897, 100, 50_000, length=20.5), encoding="utf-8")
    params = load_params(tmp_path / "params.yaml")
    size = resolve(params.model)
    assert isinstance(size, TransformerSize)
    assert (size.norm, size.depths, size.d_model, size.dropout, params.bpe.vocab_size) == ("pre", (2, 2), 192, 0.2, 4000)
    few = recipes.load("own-data").train
    assert params.train.updates * params.train.tokens_per_update == 2 * few.updates * few.tokens_per_update


def test_each_row_of_table_3_is_its_base_recipe_with_that_rows_change_and_without_averaging() -> None:
    for name, row in ((f"table3/{name}", row) for name, row in TABLE_3.items()):
        params, paper = params_of(name), params_of(f"wmt14-en-de-{'big' if name == 'table3/big' else 'base'}")
        assert resolve(params.model) == resolve(Model(preset=name)) == row.size, name
        assert params.train == paper.train.model_copy(update={"label_smoothing": row.label_smoothing}), name
        assert (params.train.updates, params.average.count) == (row.updates, 1), name
        assert (params.download, params.bpe, params.decode) == (paper.download, paper.bpe, paper.decode), name
        assert params.publish.name == f"wmt14-en-de-{name.replace('/', '-')}"


def test_a_baselines_recipe_is_the_default_with_another_model() -> None:
    default = params_of("tatoeba")
    for name in recipes.BASELINES:
        params = params_of(name)
        same = {"model": default.model, "publish": default.publish, "decode": default.decode}
        assert params.model_copy(update=same) == default, name
        assert params.decode == default.decode.model_copy(update={"engine": "torch"}), name
        assert params.model.architecture != "transformer", name
