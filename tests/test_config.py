from pathlib import Path

import pytest

from tests.refusals import refused
from transformer_core import recipes
from transformer_core.config import Download, Params, load_params, validate_document
from transformer_core.errors import UserError
from transformer_core.presets import TABLE_3

pytestmark = pytest.mark.usefixtures("empty_directory")

WHOLE = recipes.read("synthetic")
SECTIONS = "download, clean, bpe, binarize, model, train, average, decode, evaluate, publish, machine"
PROBABILITY = "a number of at least 0 and below 1"
COVERAGE = "a number of at least 0.98 and at most 1"
SYMBOLS = "a list of different texts without white space, none of them a special token"
FACTOR = "Did you mean 'learning_rate_factor'?"
FEWER = "Keep more checkpoints or average fewer."
ENGINE = "Set decode.engine: ctranslate2."
LIST = "Set average.shortlist, for example to 100."
WORST = "The two models of clean.score_by find the worst pairs."
TOO_FEW = "give fewer checkpoints than average.count (5). Save more often or average fewer."
BOTH = "Weights belong to their vocabulary: name the same model in both."
PRETRAINED = "the name of a folder in pretrained/"
NO_BLEU = "the task is parsing (download.target tree), which has no bleu"
TOO_LONG = "does not fit the smaller of train.tokens_per_microbatch (640) and train.tokens_per_update (2560). Lower it or raise them."

# A text of the file, the text that replaces it, and the message after "params.yaml".
FAULTS = [
    ("  warmup: 400", "  warmup: x", ": train.warmup: must be a whole number above 0, got 'x'"),
    ("  warmup: 400", "  warmup: 0", ": train.warmup: must be a whole number above 0, got 0"),
    ("  warmup: 400", "  warmup: 400.0", ": train.warmup: must be a whole number above 0, got 400.0"),
    ("  warmup: 400", "  warmup: true", ": train.warmup: must be a whole number above 0, got True"),
    ("  warmup: 400", "  warmup:", ": train.warmup: must be a whole number above 0, got None"),
    ("  warmup: 400\n", "", ": train.warmup: missing, must be a whole number above 0"),
    ("  warmup: 400", "  warmups: 400", ": train.warmups: unknown key. Did you mean 'warmup'?"),
    ("  corpus: synthetic", "  zzz: 1\n  corpus: synthetic", ": download.zzz: unknown key. Known keys: corpus, source, target."),
    ("average:", "averages:", ": averages: unknown key. Did you mean 'average'?"),
    ("average:\n  of: last\n  count: 5\n  shortlist: 0\n", "", ": average: missing, must be a section with the keys of, count, shortlist"),
    (
        "average:\n  of: last\n  count: 5\n  shortlist: 0",
        "average: 5",
        ": average: must be a section with the keys of, count, shortlist, got 5",
    ),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: fast", ": train.learning_rate_factor: must be a number above 0, got 'fast'"),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: .inf", ": train.learning_rate_factor: must be a number above 0, got inf"),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: .nan", ": train.learning_rate_factor: must be a number above 0, got nan"),
    ("  learning_rate_factor: 1.0", "  learning_rate: 1.0", f": train.learning_rate: unknown key. {FACTOR}"),
    ("  label_smoothing: 0.1", "  label_smoothing: 1", f": train.label_smoothing: must be {PROBABILITY}, got 1"),
    ("  cooldown: 0", "  cooldown: 2", ": train.cooldown: must be a number of at least 0 and at most 1, got 2"),
    ("  precision: auto", "  precision: half", ": train.precision: must be one of auto, bf16, fp16, float32, float64, got 'half'"),
    ("  drop_copies: true", "  drop_copies: yes", ": clean.drop_copies: must be true or false, got 'yes'"),
    ("  allow_tokenised: false", "  allow_tokenised: 0", ": evaluate.allow_tokenised: must be true or false, got 0"),
    ("  keep_best: 0\n  seed: 1", "  keep_best: 0\n  seed: -1", ": train.seed: must be a whole number of at least 0, got -1"),
    ("  alpha: 0.6", "  alpha: -0.6", ": decode.alpha: must be a number of at least 0 and at most 10, got -0.6"),
    ("  vocab_size: 2000", "  vocab_size: 8", ": bpe.vocab_size: must be a whole number above 16, got 8"),
    ("  character_coverage: 1.0", "  character_coverage: 0", f": bpe.character_coverage: must be {COVERAGE}, got 0"),
    ("  user_symbols: []", "  user_symbols: [</s>]", f": bpe.user_symbols: must be {SYMBOLS}, got ['</s>']"),
    ("  engine: torch", "  engine: onnx", ": decode.engine: must be one of torch, ctranslate2, got 'onnx'"),
    ("  penalty: wu", "  penalty: none", ": decode.penalty: must be one of wu, power, got 'none'"),
    ("  max_ratio: 3.0", "  max_ratio: 0.5", ": clean.max_ratio: must be a number of at least 1, got 0.5"),
    ("  preset: tiny", "  preset: tiny\n  layers: 0", ": model.layers: must be a whole number above 0, got 0"),
    ("  preset: tiny", "  preset: tiny\n  dropout: 1.5", f": model.dropout: must be {PROBABILITY}, got 1.5"),
    ("  preset: tiny", "  preset: tiny\n  dropout: -0.1", f": model.dropout: must be {PROBABILITY}, got -0.1"),
    ("  preset: tiny", "  preset: tiny\n  norm: both", ": model.norm: must be one of post, pre, got 'both'"),
    ("  preset: tiny", "  preset: tiny\n  convolutions: [[1, 0, 1]]", ": model.convolutions.0.1: must be a whole number above 0, got 0"),
    ("  corpus: synthetic", '  corpus: ""', ": download.corpus: must be a name, got ''"),
    ("  name: synthetic-en-de", "  name: it's", ': publish.name: must be a name without / : \' and ", got "it\'s"'),
    ("  pools: {}", "  pools: 3", ": machine.pools: must be a work pool's name for each stage, got 3"),
    ("  pools: {}", "  pools: {train: 3}", ": machine.pools.train: must be a text, got 3"),
    ("  beam: 4", "  beam: 101", ": decode.beam: must be a whole number above 0 and at most 100, got 101"),
    ("  max_extra: 50", f"  max_extra: {10**20}", f": decode.max_extra: must be at most 1,000,000,000, got {10**20}"),
    ("  devices:", "  devices: none", ": machine.devices: must be a whole number above 0, got 'none'"),
    ("  threads:", "  thread:", ": machine.thread: unknown key. Did you mean 'threads'?"),
    ("  target: de", "  target: en", ": download.target: must differ from download.source, got 'en'"),
    ("  keep: 5", "  keep: 2", f": average.count: must be at most train.keep (2), got 5. {FEWER}"),
    ("  of: last", "  of: best", f": average.count: must be at most train.keep_best (0), got 5. {FEWER}"),
    ("  updates: 1050", "  updates: 200", f": train.save_every: 200 updates in steps of 50 {TOO_FEW}"),
    ("  validate_every: 250", "  validate_every: 240", ": train.validate_every: must be a multiple of train.save_every (50), got 240"),
    ("train:\n  init_from:", "train:\n  init_from: parent", f": bpe.init_from: missing, train.init_from starts from parent. {BOTH}"),
    ("bpe:\n  init_from:", "bpe:\n  init_from: models/averaged", f": bpe.init_from: must be {PRETRAINED}, got 'models/averaged'"),
    (
        "  precision: float32",
        "  precision: int8",
        f": decode.precision: must not be int8 with decode.engine torch. {ENGINE}",
    ),
    ("  shortlist: false", "  shortlist: true", f": decode.shortlist: must be false where average.shortlist is 0, got true. {LIST}"),
    ("drop_worst: 0", "drop_worst: 0.1", f": clean.drop_worst: must be 0 where clean.score_by is null, got 0.1. {WORST}"),
    ("score_by:", "score_by: both", f": clean.drop_worst: must be above 0 where clean.score_by is both, got 0. {WORST}"),
    ("train:\n  init_from:", "train:\n  init_from: None", f": train.init_from: must be {PRETRAINED}, got 'None'"),
    ("  bpe_dropout: 0", "  bpe_dropout: 1", f": train.bpe_dropout: must be {PROBABILITY}, got 1"),
    ("  r_drop: 0", "  r_drop: -1", ": train.r_drop: must be a number of at least 0, got -1"),
    ("  r_drop: 0\n", "", ": train.r_drop: missing, must be a number of at least 0"),
    ("  max_tokens: 128", "  max_tokens: 5000", f": binarize.max_tokens: a pair of 5000 tokens {TOO_LONG}"),
    ("  source: en", "  source: tree", ": download.source: must be a language, trees can be the target alone, got 'tree'"),
    ("  target: de", "  target: tree", f": train.best_by: {NO_BLEU}. Set perplexity, or f1."),
    ("  warmup: 400", "\twarmup: 400", ":38: not valid YAML (found character '\\t' that cannot start any token). Indent with spaces."),
    ("  warmup: 400", "  warmup: [", ":40: not valid YAML (expected ',' or ']', but got ':')"),
    (
        "  warmup: 400",
        "  warmup: 1\n  warmup: 2",
        ':39: not valid YAML (found duplicate key "warmup"). Remove one of them.',
    ),
]


def loaded(text: str) -> Params:
    Path("params.yaml").write_text(text, encoding="utf-8")
    return load_params()


def refusal(text: str) -> str:
    with refused(78) as error:
        loaded(text)
    return str(error.value).removeprefix("params.yaml")


def test_a_fault_is_one_line_that_names_file_key_and_remedy() -> None:
    for old, new, line in FAULTS:
        assert WHOLE.count(old if old.endswith("\n") else f"{old}\n") == 1, old
        assert refusal(WHOLE.replace(old, new, 1)) == line


def test_symbols_of_trees_are_not_lowercased() -> None:
    text = WHOLE.replace("target: de", "target: tree").replace("best_by: bleu", "best_by: f1")
    assert loaded(text).download.task == "parsing"
    line = ": bpe.lowercase: must be false where download.target is tree, got true. The labels of trees are capitals."
    assert refusal(text.replace("lowercase: false", "lowercase: true")) == line


def test_what_ctranslate2_cannot_have_is_refused_before_anything_is_trained() -> None:
    text = WHOLE.replace("engine: torch", "engine: ctranslate2")
    for model, fault in (
        ("neighbourhood: 8", "neighbourhood: cannot be converted to CTranslate2, got 8"),
        ("architecture: recurrent", "architecture: CTranslate2 has no recurrent model"),
    ):
        line = f": model.{fault}. Set decode.engine: torch."
        assert refusal(text.replace("  preset: tiny", f"  preset: tiny\n  {model}")) == line
    for precision in ("float32", "int8"):
        assert loaded(text.replace("  precision: float32", f"  precision: {precision}")).decode.precision == precision
    line = ": decode.precision: must be float32 or int8 with decode.engine ctranslate2, got 'bf16'"
    assert refusal(text.replace("  precision: float32", "  precision: bf16")) == line


def test_a_file_that_is_no_params_file_is_one_line() -> None:
    assert refusal("") == f": must be a document with the keys {SECTIONS}, got None"
    assert refusal("- 1\n") == f": must be a document with the keys {SECTIONS}, got [1]"
    Path("params.yaml").write_bytes(b"train: \xff\n")
    with pytest.raises(UserError, match=r"^params.yaml: not valid UTF-8 \(byte 7\)$"):
        load_params()
    with pytest.raises(UserError, match=r"^none\.yaml: no such file\. Write one with: transformer-core recipe synthetic$"):
        load_params(Path("none.yaml"))


def test_bpe_dropout_is_refused_where_params_say_that_the_subwords_are_not_bpe() -> None:
    both = WHOLE.replace("  bpe_dropout: 0\n", "  bpe_dropout: 0.1\n").replace("  type: bpe\n", "  type: unigram\n")
    assert refusal(both) == ": train.bpe_dropout: must be 0 where bpe.type is unigram, got 0.1. Only BPE has merges to leave out."
    # Subwords that are taken from a model are of its type, which stage train checks.
    assert loaded(both.replace("bpe:\n  init_from:", "bpe:\n  init_from: parent")).train.bpe_dropout == 0.1


def test_r_drop_is_refused_without_dropout() -> None:
    text = WHOLE.replace("  r_drop: 0\n", "  r_drop: 5\n")
    assert loaded(text).train.r_drop == 5
    remedy = "It compares two passes, which are equal without dropout. Set model.dropout, for example to 0.1."
    for model in ("tiny\n  dropout: 0", "table3/D-dropout0.0"):
        without = text.replace("  preset: tiny", f"  preset: {model}")
        assert refusal(without) == f": train.r_drop: must be 0 where the model has no dropout, got 5. {remedy}"
    assert loaded(text.replace("  preset: tiny", "  preset: tiny\n  dropout: 0\n  relu_dropout: 0.1")).train.r_drop == 5


def test_settings_that_are_seldom_meant_are_named() -> None:
    def warned(text: str, *changes: tuple[str, str]) -> list[str]:
        for old, new in changes:
            assert text.count(f"{old}\n") == 1
            text = text.replace(f"{old}\n", f"{new}\n")
        return loaded(text).warnings

    assert warned(WHOLE) == []
    cooled = (
        "train.warmup: 800 updates, but the training has 1,050 with train.cooldown 0.9: the learning rate reaches 36% of its highest value"
    )
    assert warned(WHOLE, ("  warmup: 400", "  warmup: 800"), ("  cooldown: 0", "  cooldown: 0.9")) == [
        f"{cooled}. Lower it, or raise train.updates."
    ]
    after = "if train.patience ends the training, 750 updates after the best one, it averages later checkpoints only"
    waiting = ("  patience: 0", "  patience: 3")
    assert warned(WHOLE, waiting) == [f"average.of: last: {after}. Set best, and train.keep_best: 5 and train.patience: 4 or more."]
    assert warned(WHOLE, waiting, ("  of: last", "  of: best"), ("  keep_best: 0", "  keep_best: 5"), ("  count: 5", "  count: 4")) == []
    for of, every, saved in (("last", 50, 2), ("best", 200, 2)):
        soon = (("  patience: 0", "  patience: 1"), ("  validate_every: 250", f"  validate_every: {every}"))
        few = (*soon, ("  of: last", f"  of: {of}"), ("  keep_best: 0", "  keep_best: 5"))
        end = f"train.patience: 1 can end the training after update {2 * every}, with {saved} checkpoints to average"
        assert warned(WHOLE, *few) == [f"{end}, and average.count asks for 5. Raise train.patience or lower average.count."]
        assert warned(WHOLE, *few, ("  count: 5", "  count: 2")) == []
    parser = recipes.read("synthetic-parsing")
    assert warned(parser) == []
    assert warned(parser, ("  max_extra: 300", "  max_extra: 299")) == [
        "decode.max_extra: a tree with more than 299 tokens beyond its sentence's is cut. The paper has 300 (6.3)."
    ]


def test_a_row_of_table_3_about_label_smoothing_needs_that_label_smoothing() -> None:
    for row, smoothing in ((name, row.label_smoothing) for name, row in TABLE_3.items() if row.label_smoothing != 0.1):
        text = WHOLE.replace("  preset: tiny", f"  preset: {row}")
        assert refusal(text) == (
            f": train.label_smoothing: must be {smoothing} with model.preset {row}, got 0.1. "
            f"A preset sets no key of train; the recipe of the row does: transformer-core recipe {row}"
        )
        assert loaded(text.replace("label_smoothing: 0.1", f"label_smoothing: {smoothing}")).train.label_smoothing == smoothing


def test_a_whole_number_is_a_number_and_machine_may_be_left_out_and_sections_are_frozen() -> None:
    params = loaded(WHOLE[: WHOLE.index("machine:")].replace("learning_rate_factor: 1.0", "learning_rate_factor: 2"))
    assert (params.train.learning_rate_factor, params.machine.devices) == (2.0, None)
    with pytest.raises(ValueError, match="frozen"):
        params.train.warmup = 1


def test_of_very_many_faults_the_first_ten_are_told() -> None:
    told = refusal(WHOLE + "".join(f"key{number}: 1\n" for number in range(50)))
    assert told.count("unknown key") == 10
    assert told.endswith("There are more faults.")


def test_an_unknown_key_with_a_line_feed_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        validate_document(Download, {"corpus": "a", "source": "en", "target": "de", "a\n\nb": 1}, tmp_path / "a.yaml")
    assert str(raised.value).startswith(f"{tmp_path}/a.yaml: a\\n\\nb: unknown key. ")
    assert "\n" not in str(raised.value)
