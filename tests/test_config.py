import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from transformer_core import recipes
from transformer_core.config import Model, Params, load_params, resolve
from transformer_core.errors import UserError
from transformer_core.presets import BASE

pytestmark = pytest.mark.usefixtures("empty_directory")

WHOLE = recipes.read("tatoeba")
TOO_FEW = "give fewer checkpoints than average.count (5). Save more often or average fewer."

# A line of the file, the line that replaces it, and the message after "params.yaml: ".
FAULTS = [
    ("  warmup: 400", "  warmup: 400.0", "train.warmup: must be a valid integer, got 400.0"),
    ("  warmup: 400", "  warmup:", "train.warmup: must be a valid integer, got None"),
    ("  warmup: 400", f"  warmup: {10**20}", f"train.warmup: must be less than or equal to 1000000000, got {10**20}"),
    ("  warmup: 400\n", "", "train.warmup: missing"),
    ("  warmup: 400", "  warmups: 400", "train.warmups: unknown key. Did you mean 'warmup'?"),
    ("  corpus: tatoeba", "  zzz: 1\n  corpus: tatoeba", "download.zzz: unknown key. Known keys: corpus, source, target."),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: .nan", "train.learning_rate_factor: must be a finite number, got nan"),
    ("  precision: auto", "  precision: half", "train.precision: must be 'auto', 'bf16', 'fp16', 'float32' or 'float64', got 'half'"),
    ("  drop_copies: true", "  drop_copies: yes", "clean.drop_copies: must be a valid boolean, got 'yes'"),
    ("  user_symbols: []", "  user_symbols: [</s>]", "bpe.user_symbols: must be a list of different texts without white space"),
    ("  dropout: 0", "  dropout: 1.5", "model.dropout: must be less than 1, got 1.5"),
    ("  preset: tiny", "  preset: tiny\n  convolutions: [[1, 0, 1]]", "model.convolutions.0.1: must be greater than 0, got 0"),
    ("  preset: tiny", "  preset: tiny\n  convolutions: [[8, 2, 1]]", "model.convolutions.0.1: must be odd, so that a convolution has a "),
    ("  preset: tiny", "  preset: tiny\n  kernel: 4", "model.kernel: must be odd, so that a convolution has a middle, got 4"),
    ("  name: tatoeba-en-de", "  name: it's", 'publish.name: must be a name without / : \' and ", got "it\'s"'),
    ("  places: {}", "  places: {train: 3}", "machine.places.train: must be a valid dictionary or object to extract fields from, got 3"),
    ("  threads:", "  thread:", "machine.thread: unknown key. Did you mean 'threads'?"),
    ("  target: de", "  target: en", "download.target: must differ from download.source, got 'en'"),
    ("  keep: 5", "  keep: 2", "average.count: must be at most train.keep (2), got 5. Keep more checkpoints or average fewer."),
    ("  of: last", "  of: best", "average.count: must be at most train.keep_best (0), got 5. Keep more checkpoints or average fewer."),
    ("  updates: 3000", "  updates: 200", f"train.save_every: 200 updates in steps of 50 {TOO_FEW}"),
    ("  validate_every: 250", "  validate_every: 240", "train.validate_every: must be a multiple of train.save_every (50), got 240"),
    ("bpe:\n  init_from:", "bpe:\n  init_from: models/a", "bpe.init_from: must be the name of a folder in pretrained/, got 'models/a'"),
    ("  shortlist: false", "  shortlist: true", "decode.shortlist: must be false where average.shortlist is 0, got true."),
    ("drop_worst: 0", "drop_worst: 0.1", "clean.drop_worst: must be 0 where clean.score_by is null, got 0.1."),
    ("score_by:", "score_by: both", "clean.drop_worst: must be above 0 where clean.score_by is both, got 0."),
    ("  max_tokens: 128", "  max_tokens: 5000", "binarize.max_tokens: a pair of 5000 tokens does not fit the smaller of "),
    ("  source: en", "  source: tree", "download.source: must be a language, tree can be the target alone"),
    ("  preset: tiny", "  preset: tiny\n  architecture: parser", "model.architecture: parser is for download.target tree alone, got de"),
    ("  target: de", "  target: tree", "decode.engine: must be torch where download.target is tree, got ctranslate2"),
    ("  best_by: bleu", "  best_by: f1", "train.best_by: must be nll, perplexity, accuracy or bleu, the score of translation, got 'f1'"),
    ("  warmup: 400", "\twarmup: 400", ":50: not valid YAML (found character '\\t' that cannot start any token). Indent with spaces."),
    ("  warmup: 400", "  warmup: [", ":52: not valid YAML (expected ',' or ']', but got ':')"),
    ("  warmup: 400", "  warmup: 1\n  warmup: 2", ':51: not valid YAML (found duplicate key "warmup"). Remove one of them.'),
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
        told = refusal(WHOLE.replace(old, new, 1))
        assert told.removeprefix(": ").startswith(line)
        assert "\n" not in told


TREES = {"target: de": "target: tree", "best_by: bleu": "best_by: f1", "  engine: ctranslate2": "  engine: torch"}
LISTED = {"  shortlist: 0": "  shortlist: 9", "shortlist: false": "shortlist: true"}
ANEW = {"  bpe_dropout: 0\n": "  bpe_dropout: 0.1\n", "  type: bpe\n": "  type: unigram\n"}
TWICE = {"  r_drop: 0\n": "  r_drop: 5\n"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (TREES, None),
        (TREES | LISTED, "average.shortlist: must be 0 where download.target is tree, got 9"),
        (TREES | {"lowercase: false": "lowercase: true"}, "bpe.lowercase: must be false where download.target is tree, got true. The"),
        ({"preset: tiny": "preset: tiny\n  architecture: recurrent"}, "model.architecture: cannot be converted to CTranslate2, got 'recur"),
        ({"precision: float32": "precision: int8"}, None),
        ({"  engine: ctranslate2\n  precision: float32": "  engine: torch\n  precision: int8"}, "decode.precision: must not be int8 with"),
        ({"precision: float32": "precision: bf16"}, "decode.precision: must be float32 or int8 with decode.engine ctranslate2, got 'bf16'"),
        (ANEW, "train.bpe_dropout: must be 0 where bpe.type is unigram, got 0.1. Only BPE has merges to leave out."),
        # Subwords that are taken from a model are of its type, which stage train checks.
        (ANEW | {"bpe:\n  init_from:": "bpe:\n  init_from: parent"}, None),
        (TWICE, "train.r_drop: must be 0 where the model has no dropout, got 5. It compares two passes, which are equal without dropout."),
        (TWICE | {"  dropout: 0": "  dropout: 0.1"}, None),
        (TWICE | {"  dropout: 0": "  relu_dropout: 0.1"}, None),
        ({"  mix:": "  mix: [{until: 0.5, weights: {a: 1}}, {weights: {b: 1}}]"}, None),
        ({"  mix:": "  mix: [{weights: {a: 1}}, {weights: {b: 1}}]"}, "train.mix: stages must end one after the other"),
        ({"  mix:": "  mix: [{until: 3000, weights: {a: 1}}, {weights: {b: 1}}]"}, "train.mix: stages must end one after the other"),
    ],
)
def test_settings_that_depend_on_others_are_refused_where_they_do_not_suit_them(changes: dict[str, str], line: str | None) -> None:
    text = WHOLE
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    if line is None:
        assert loaded(text).download.task.name == ("parsing" if changes is TREES else "translation")
    else:
        assert refusal(text).startswith(f": {line}")


def test_a_file_that_is_no_params_file_is_one_line() -> None:
    assert refusal("") == ": must be a valid dictionary or instance of Params, got None"
    assert refusal("- 1\n") == ": must be a valid dictionary or instance of Params, got [1]"
    Path("params.yaml").write_bytes(b"train: \xff\n")
    with pytest.raises(UserError, match=r"^params.yaml: not valid UTF-8 \(byte 7\)$"):
        load_params()
    with pytest.raises(UserError, match=r"^none\.yaml: no such file\. Write one with: transformer-core recipe tatoeba$"):
        load_params(Path("none.yaml"))


def test_a_warm_up_that_the_cooldown_cuts_off_is_named() -> None:
    text = WHOLE.replace("  warmup: 400", "  warmup: 2000").replace("  cooldown: 0.5", "  cooldown: 0.9")
    assert loaded(WHOLE).train.warning == ""
    told = "2,000 updates, of which 300 come before the cooldown or the end. Lower it, or raise train.updates."
    assert loaded(text).train.warning == f"train.warmup: {told}"


def test_a_whole_number_is_a_number_and_machine_may_be_left_out_and_sections_are_frozen() -> None:
    params = loaded(WHOLE[: WHOLE.index("machine:")].replace("learning_rate_factor: 1.0", "learning_rate_factor: 2"))
    assert (params.train.learning_rate_factor, params.machine.devices) == (2.0, None)
    with pytest.raises(ValueError, match="frozen"):
        params.train.warmup = 1


def test_of_very_many_faults_the_first_ten_are_told() -> None:
    told = refusal(WHOLE + "".join(f"key{number}: 1\n" for number in range(50)))
    assert told.count("unknown key") == 10
    assert told.endswith("There are more faults.")


RECURRENT, CONVOLUTIONAL = ({"preset": "tiny", "architecture": name} for name in ("recurrent", "convolutional"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "bas"}, "preset: no preset of the architecture transformer is called 'bas'. Did you mean base?"),
        ({"preset": "base", "d_model": 511}, "d_model: must be even, got 511"),
        ({"preset": "base", "heads": 3}, "heads: 3 heads do not divide d_model 512. Set model.d_k or choose a divisor."),
        ({"preset": "base", "most_positions": 9}, "most_positions: needs model.positions learned, got sinusoidal. Leave the key out."),
        ({"preset": "base", "kernel": 3}, "kernel: the architecture transformer has no such setting"),
        (RECURRENT | {"decoder": "luong", "attention": "additive"}, "attention: must be dot with model.decoder luong, got additive."),
        (CONVOLUTIONAL | {"preset": "wmt14-en-de", "layers": 3}, "layers: is set by model.convolutions. Leave the key out, or "),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(settings: dict[str, object], message: str) -> None:
    with refused(78, re.escape(f"model.{message}")):
        resolve(Model.model_validate(settings))


def test_keys_override_the_preset_one_by_one_and_what_is_left_out_follows_from_the_others() -> None:
    wide, student = {"preset": "base", "heads": 16}, {"preset": "student-tiny"}
    groups = ((32, 3, 2), (64, 1, 1))
    for settings, expected in (
        ({"preset": "base", "norm": "pre", "layers": 2}, {"norm": "pre", "layers": 2, "d_model": 512}),
        (RECURRENT | {"cell": "gru", "attention": "none"}, {"cell": "gru", "attention": "none", "decoder": "simple"}),
        (RECURRENT | {"decoder": "luong"}, {"attention": "dot", "bidirectional": False, "layers": 1, "d_model": 256}),
        (CONVOLUTIONAL | {"convolutions": groups}, {"layers": 3, "d_model": 192, "convolutions": groups}),
        (wide, {"d_k": 32, "d_v": 32}),
        (wide | {"d_k": 7}, {"d_k": 7, "d_v": 32}),
        (student, {"depths": (6, 2)}),
        (student | {"layers": 3}, {"depths": (3, 3)}),
        (student | {"decoder_layers": 1}, {"depths": (6, 1)}),
        (student | {"layers": 4, "encoder_layers": 5}, {"depths": (5, 4)}),
    ):
        size = resolve(Model.model_validate(settings))
        assert {name: getattr(size, name) for name in expected} == expected
    for learned in (Model(preset="base", positions="learned", most_positions=9), Model(preset="table3/E-learned", most_positions=9)):
        assert resolve(learned) == replace(BASE, positions="learned", most_positions=9)
