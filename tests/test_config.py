from pathlib import Path

import pytest

from transformer_core import recipes
from transformer_core.config import Params, load_params, read_yaml
from transformer_core.errors import ExitCode, UserError
from transformer_core.presets import TABLE_3

WHOLE = recipes.read("synthetic")
SECTIONS = "download, clean, bpe, binarize, model, train, average, decode, evaluate, publish, machine"

# What stands in the file, what is put there instead, and the line that says so after "params.yaml".
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
    ("average:\n  of: last\n  count: 5\n", "", ": average: missing, must be a section with the keys of, count"),
    ("average:\n  of: last\n  count: 5", "average: 5", ": average: must be a section with the keys of, count, got 5"),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: fast", ": train.learning_rate_factor: must be a number above 0, got 'fast'"),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: .inf", ": train.learning_rate_factor: must be a number above 0, got inf"),
    ("  learning_rate_factor: 1.0", "  learning_rate_factor: .nan", ": train.learning_rate_factor: must be a number above 0, got nan"),
    ("  learning_rate_factor: 1.0", "  learning_rate: 1.0", ": train.learning_rate: unknown key. Did you mean 'learning_rate_factor'?"),
    ("  label_smoothing: 0.1", "  label_smoothing: 1", ": train.label_smoothing: must be a number from 0 to below 1, got 1"),
    ("  precision: auto", "  precision: half", ": train.precision: must be one of auto, bf16, fp16, float32, float64, got 'half'"),
    ("  drop_copies: true", "  drop_copies: yes", ": clean.drop_copies: must be true or false, got 'yes'"),
    ("  allow_tokenised: false", "  allow_tokenised: 0", ": evaluate.allow_tokenised: must be true or false, got 0"),
    ("  keep_best: 0\n  seed: 1", "  keep_best: 0\n  seed: -1", ": train.seed: must be a whole number, 0 or more, got -1"),
    ("  alpha: 0.6", "  alpha: -0.6", ": decode.alpha: must be a number, 0 or more, got -0.6"),
    ("  vocab_size: 2000", "  vocab_size: 8", ": bpe.vocab_size: must be a whole number above 16, got 8"),
    ("  engine: torch", "  engine: onnx", ": decode.engine: must be one of torch, ctranslate2, got 'onnx'"),
    ("  penalty: wu", "  penalty: none", ": decode.penalty: must be one of wu, power, got 'none'"),
    (
        "  engine: torch",
        "  engine: ctranslate2",
        ": decode.penalty: must be power with decode.engine ctranslate2, which has no other, got 'wu'",
    ),
    ("  max_ratio: 3.0", "  max_ratio: 0.5", ": clean.max_ratio: must be a number, 1 or more, got 0.5"),
    ("  preset: tiny", "  preset: tiny\n  layers: 0", ": model.layers: must be a whole number above 0, got 0"),
    ("  preset: tiny", "  preset: tiny\n  dropout: 1.5", ": model.dropout: must be a number from 0 to below 1, got 1.5"),
    ("  preset: tiny", "  preset: tiny\n  dropout: -0.1", ": model.dropout: must be a number from 0 to below 1, got -0.1"),
    ("  preset: tiny", "  preset: tiny\n  neighbourhood: 0", ": model.neighbourhood: must be a whole number above 0, got 0"),
    ("  preset: tiny", "  preset: tiny\n  norm: both", ": model.norm: must be one of post, pre, got 'both'"),
    ("  corpus: synthetic", '  corpus: ""', ": download.corpus: must be a name, got ''"),
    ("  pools: {}", "  pools: 3", ": machine.pools: must be a work pool's name for each stage, got 3"),
    ("  devices:", "  devices: none", ": machine.devices: must be a whole number above 0, got 'none'"),
    ("  threads:", "  thread:", ": machine.thread: unknown key. Did you mean 'threads'?"),
    ("  target: de", "  target: en", ": download.target: must differ from download.source, got 'en'"),
    (
        "  keep: 5",
        "  keep: 2",
        ": average.count: must be at most train.keep (2), got 5. Keep more checkpoints or average fewer.",
    ),
    (
        "  updates: 1050",
        "  updates: 200",
        ": train.save_every: 200 updates in steps of 50 give fewer checkpoints than average.count (5) takes. "
        "Save more often or average fewer.",
    ),
    ("  validate_every: 250", "  validate_every: 240", ": train.validate_every: must be a multiple of train.save_every (50), got 240"),
    (
        "  of: last",
        "  of: best",
        ": average.count: must be at most train.keep_best (0), got 5. Keep more checkpoints or average fewer.",
    ),
    (
        "train:\n  init_from:",
        "train:\n  init_from: models/parent",
        ": bpe.init_from: missing, train.init_from starts from models/parent. Weights belong to their vocabulary: name the same model "
        "directory in both.",
    ),
    ("  bpe_dropout: 0", "  bpe_dropout: 1", ": train.bpe_dropout: must be a number from 0 to below 1, got 1"),
    (
        "  max_tokens: 128",
        "  max_tokens: 5000",
        ": binarize.max_tokens: a pair of 5000 tokens does not fit the smaller of train.tokens_per_microbatch (640) and "
        "train.tokens_per_update (2560). Lower it or raise them.",
    ),
    ("  warmup: 400", "  warmup: [", ":37: not valid YAML (expected ',' or ']', but got ':')"),
    (
        "  warmup: 400",
        "  warmup: 400\n  warmup: 400",
        ':36: not valid YAML (found duplicate key "warmup" with value "400" (original value: "400"))',
    ),
]


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("standing", "put", "line"), FAULTS, ids=[line for _, _, line in FAULTS])
@pytest.mark.usefixtures("in_tmp_path")
def test_a_fault_is_one_line_that_names_file_key_and_remedy(standing: str, put: str, line: str) -> None:
    assert WHOLE.count(f"{standing}\n" if not standing.endswith("\n") else standing) == 1
    Path("params.yaml").write_text(WHOLE.replace(standing, put, 1), encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_params()
    assert str(error.value) == f"params.yaml{line}"
    assert error.value.exit_code == ExitCode.BAD_CONFIGURATION


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("neighbourhood: 8", "model.neighbourhood: CTranslate2 has no attention over a neighbourhood. Set decode.engine: torch."),
        ("architecture: recurrent", "model.architecture: CTranslate2 has no recurrent model. Set decode.engine: torch."),
    ],
)
@pytest.mark.usefixtures("in_tmp_path")
def test_a_model_that_the_engine_cannot_hold_is_refused_before_it_is_trained(model: str, line: str) -> None:
    text = WHOLE.replace("engine: torch", "engine: ctranslate2").replace("penalty: wu", "penalty: power")
    Path("params.yaml").write_text(text.replace("  preset: tiny", f"  preset: tiny\n  {model}"), encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_params()
    assert str(error.value) == f"params.yaml: {line}"
    assert error.value.exit_code == ExitCode.BAD_CONFIGURATION


@pytest.mark.usefixtures("in_tmp_path")
def test_ctranslate2_computes_in_float32_or_int8() -> None:
    text = WHOLE.replace("engine: torch", "engine: ctranslate2").replace("penalty: wu", "penalty: power")
    for precision in ("float32", "int8"):
        Path("params.yaml").write_text(text.replace("  precision: float32", f"  precision: {precision}"), encoding="utf-8")
        assert load_params().decode.precision == precision
    Path("params.yaml").write_text(text.replace("  precision: float32", "  precision: bf16"), encoding="utf-8")
    with pytest.raises(UserError, match=r"decode\.precision: must be float32 or int8 with decode.engine ctranslate2, got 'bf16'"):
        load_params()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            b"",
            f"params.yaml: must be a document with the keys {SECTIONS}, got None",
        ),
        (
            b"- 1\n",
            f"params.yaml: must be a document with the keys {SECTIONS}, got [1]",
        ),
        (b"train: \xff\n", "params.yaml: not valid UTF-8 (byte 7)"),
    ],
)
@pytest.mark.usefixtures("in_tmp_path")
def test_a_file_that_is_no_params_file_is_one_line(content: bytes, line: str) -> None:
    Path("params.yaml").write_bytes(content)
    with pytest.raises(UserError) as error:
        load_params()
    assert str(error.value) == line


@pytest.mark.usefixtures("in_tmp_path")
def test_bpe_dropout_is_refused_where_params_say_that_the_subwords_are_not_bpe() -> None:
    both = WHOLE.replace("  bpe_dropout: 0\n", "  bpe_dropout: 0.1\n").replace("  type: bpe\n", "  type: unigram\n")
    Path("params.yaml").write_text(both, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_params()
    assert str(error.value) == (
        "params.yaml: train.bpe_dropout: must be 0 where bpe.type is unigram, got 0.1. Only BPE has merges to leave out."
    )
    assert error.value.exit_code == ExitCode.BAD_CONFIGURATION
    # Subwords that are taken from a model are of its type, which stage train looks at.
    Path("params.yaml").write_text(both.replace("bpe:\n  init_from:", "bpe:\n  init_from: models/parent"), encoding="utf-8")
    assert load_params().train.bpe_dropout == 0.1


@pytest.mark.parametrize("row", [name for name, row in TABLE_3.items() if row.label_smoothing != 0.1])
@pytest.mark.usefixtures("in_tmp_path")
def test_a_row_of_table_3_about_label_smoothing_needs_that_label_smoothing(row: str) -> None:
    smoothing = TABLE_3[row].label_smoothing
    text = WHOLE.replace("  preset: tiny", f"  preset: {row}")
    Path("params.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_params()
    assert str(error.value) == (
        f"params.yaml: train.label_smoothing: must be {smoothing} with model.preset {row}, got 0.1. "
        f"A preset sets no key of train; the recipe of the row does: transformer-core recipe {row}"
    )
    assert error.value.exit_code == ExitCode.BAD_CONFIGURATION
    Path("params.yaml").write_text(text.replace("label_smoothing: 0.1", f"label_smoothing: {smoothing}"), encoding="utf-8")
    assert load_params().train.label_smoothing == smoothing


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"params\.yaml: no such file\. Write one with: transformer-core recipe synthetic"):
        load_params(tmp_path / "params.yaml")


def test_a_whole_number_is_a_number() -> None:
    document = read_yaml(Path(str(recipes.__path__[0])) / "synthetic.yaml")
    document["train"]["learning_rate_factor"] = 2
    assert Params.model_validate(document).train.learning_rate_factor == 2.0


def test_machine_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(WHOLE[: WHOLE.index("machine:")], encoding="utf-8")
    assert load_params(path).machine.devices is None


def test_sections_are_frozen(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(WHOLE, encoding="utf-8")
    params = load_params(path)
    with pytest.raises(ValueError, match="frozen"):
        params.train.warmup = 1
