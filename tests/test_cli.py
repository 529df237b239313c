"""The command line, as a process of its own: what it prints, where, and what it ends with."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from ruamel.yaml import YAML

from tests.models.on_disk import TEXT, VOCAB, write_model
from transformer_core import doctor, recipes
from transformer_core.config import Bpe, load_params
from transformer_core.corpus.subword import Subword, train_subword
from transformer_core.corpus.text import write_lines
from transformer_core.data_plan import plan_data
from transformer_core.errors import ExitCode, UserError
from transformer_core.models.directory import ModelConfig, save_model
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.synthetic import generate

REPOSITORY = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("transformer-core")


def call(folder: Path, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COMMAND, *arguments], cwd=folder, input=stdin, capture_output=True, check=False, env={**os.environ, **environment}
    )


def refusal(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str]:
    """The exit code and the one line of an error; fails where there is more, or anything on standard output."""
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1, done.stderr.decode()
    return done.returncode, done.stderr.decode().rstrip("\n")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with weights as they are drawn: it translates into nonsense, but always into the same."""
    folder = tmp_path_factory.mktemp("model")
    size = TransformerSize(layers=1, d_model=16, d_ff=16, heads=2, d_k=8, d_v=8, dropout=0.0)
    torch.manual_seed(1)
    return write_model(Transformer(size, VOCAB), folder / "averaged")


# --- the whole


def test_what_needs_no_model_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys; from transformer_core.cli import main; main(['recipe', 'synthetic']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == "False"


def test_help_comes_at_once_for_it_loads_nothing_large(tmp_path: Path) -> None:
    code = "import sys; from transformer_core.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n")[-2].split())
    assert "argparse" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "pydantic", "ruamel.yaml", "sentencepiece", "sacrebleu", "matplotlib", "jinja2"})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "transformer-core: the following arguments are required: COMMAND. See: transformer-core --help"),
        (
            ["translate"],
            "transformer-core translate: the following arguments are required: --model. See: transformer-core translate --help",
        ),
        (
            ["translate", "--model", "m", "--beam", "0"],
            "transformer-core translate: argument --beam: must be a whole number above 0, got '0'. See: transformer-core translate --help",
        ),
        (
            ["translate", "--model", "m", "--alpha", "nan"],
            "transformer-core translate: argument --alpha: must be a number, 0 or more, got 'nan'. See: transformer-core translate --help",
        ),
        (
            ["data", "synthetic", "--seed", "-1"],
            "transformer-core data synthetic: argument --seed: must be a whole number, 0 or more, got '-1'. "
            "See: transformer-core data synthetic --help",
        ),
    ],
)
def test_a_wrong_call_is_one_line_and_bad_configuration(arguments: list[str], line: str, tmp_path: Path) -> None:
    assert refusal(call(tmp_path, *arguments)) == (ExitCode.BAD_CONFIGURATION, line)


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([COMMAND, "recipe"], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


# --- translate


def test_every_line_gets_a_line_and_an_empty_one_stays_empty(model: Path, tmp_path: Path) -> None:
    done = call(tmp_path, "translate", "--model", str(model), stdin=b"the dog\n\n  \nthe dog\nlast line without an end")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.split(b"\n")
    assert len(lines) == 6
    assert lines[0] == lines[3] != b""
    assert lines[1:3] == [b"", b""]
    assert lines[5] == b""


def test_lines_end_at_line_feeds_only(model: Path, tmp_path: Path) -> None:
    stdin = "the\x85dog\u2028sees\x0b\x0ca\rcat\n".encode()
    assert call(tmp_path, "translate", "--model", str(model), stdin=stdin).stdout.count(b"\n") == 1


def test_n_best_gives_number_score_log_probability_and_text(model: Path, tmp_path: Path) -> None:
    stdin = b"the dog\na cat\n"
    done = call(tmp_path, "translate", "--model", str(model), "--beam", "3", "--alpha", "1", "--nbest", stdin=stdin)
    rows = [line.split("\t") for line in done.stdout.decode().split("\n")[:-1]]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert all(float(row[2]) < 0 for row in rows)
    best = call(tmp_path, "translate", "--model", str(model), "--beam", "3", "--alpha", "1", stdin=stdin)
    assert best.stdout.decode().split("\n")[:-1] == [rows[0][3], rows[3][3]]


def test_a_line_that_is_no_text_is_named(model: Path, tmp_path: Path) -> None:
    done = call(tmp_path, "translate", "--model", str(model), stdin=b"the dog\nth\xff\n")
    assert refusal(done) == (65, "<stdin>:2: not valid UTF-8 (byte 0xff at column 3). Re-encode the file as UTF-8.")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    code, line = refusal(call(tmp_path, "translate", "--model", "nowhere"))
    assert (code, line.split(". ")[0]) == (65, "nowhere/config.json: no such file")


def test_at_a_terminal_each_line_is_answered_and_an_interrupt_is_one_line(model: Path, tmp_path: Path) -> None:
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "translate", "--model", model], cwd=tmp_path, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(terminal)
    assert process.stdout is not None
    os.write(keyboard, b"the dog\n")
    assert process.stdout.readline().endswith(b"\n")
    said = interrupt(process)
    os.close(keyboard)
    assert (process.returncode, said) == (75, b"transformer-core: interrupted\n")


def interrupt(process: "subprocess.Popen[bytes]") -> bytes:
    """What a process says on standard error that is interrupted while it waits for input.

    A signal between Python's last look for signals and the system call that waits is not heard until the next: a person presses again.
    """
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[1]
    raise AssertionError("still there")


def test_a_line_longer_than_max_input_is_cut_or_left_empty_and_the_others_come_out(model: Path, tmp_path: Path) -> None:
    stdin = b"the dog\n" + b"a cat sees the dog " * 2_000 + b"\nthe cat\n"
    plain = call(tmp_path, "translate", "--model", str(model), stdin=b"the dog\nthe cat\n").stdout.split(b"\n")
    cut = call(tmp_path, "translate", "--model", str(model), "--max-input", "20", stdin=stdin)
    assert (cut.returncode, cut.stdout.count(b"\n"), cut.stdout.split(b"\n")[0::2]) == (0, 3, [plain[0], plain[1]])
    assert re.fullmatch(rb"line 2: \d\d,\d{3} tokens, cut to 20\n", cut.stderr)
    refused = call(tmp_path, "translate", "--model", str(model), "--max-input", "20", "--longer", "refuse", stdin=stdin)
    assert (refused.returncode, refused.stdout) == (65, b"%s\n\n%s\n" % (plain[0], plain[1]))
    assert re.fullmatch(rb"line 2: \d\d,\d{3} tokens, more than 20, left empty\n", refused.stderr)


def test_a_line_longer_than_the_learned_positions_is_cut_to_them(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    size = TransformerSize(**config["model"] | {"positions": "learned", "most_positions": 6})
    learned = ModelConfig.model_validate({**config, "model": size})
    save_model(tmp_path / "learned", dict(Transformer(size, learned.vocabulary.size).state_dict()), learned, model / "spm.model")
    done = call(tmp_path, "translate", "--model", "learned", stdin=b"the dog\nthe dog sees a cat the dog sees a cat\n")
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 2)
    assert re.fullmatch(rb"line 2: \d+ tokens, cut to 5\n", done.stderr)


def test_files_are_read_and_written_as_standard_input_and_output_are(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"the dog\n\na cat\n")
    piped = call(tmp_path, "translate", "--model", str(model), stdin=b"the dog\n\na cat\n")
    done = call(tmp_path, "translate", "--model", str(model), "--out", "out", "lines")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "out").read_bytes() == piped.stdout
    assert call(tmp_path, "translate", "--model", str(model), "--interactive", "lines").stdout == piped.stdout
    code, line = refusal(call(tmp_path, "translate", "--model", str(model), "nowhere"))
    assert (code, line.split(". ")[0]) == (65, "nowhere: no such file")


def test_a_file_that_fails_in_the_middle_leaves_no_output_behind(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"the dog\n" * 2_000 + b"th\xff\n")
    code, line = refusal(call(tmp_path, "translate", "--model", str(model), "--beam", "1", "--out", "out", "lines"))
    assert (code, line.split(" (")[0]) == (65, "lines:2001: not valid UTF-8")
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_scores_stand_before_the_text(model: Path, tmp_path: Path) -> None:
    nbest = call(tmp_path, "translate", "--model", str(model), "--nbest", stdin=b"the dog\n").stdout.split(b"\n")[0]
    assert call(tmp_path, "translate", "--model", str(model), "--scores", stdin=b"the dog\n").stdout == nbest.removeprefix(b"1\t") + b"\n"


def test_a_model_beside_itself_translates_as_it_does_alone(model: Path, tmp_path: Path) -> None:
    alone = call(tmp_path, "translate", "--model", str(model), stdin=b"the dog\na cat\n")
    together = call(tmp_path, "translate", "--model", str(model), "--model", str(model), stdin=b"the dog\na cat\n")
    assert (together.returncode, together.stdout) == (0, alone.stdout)


def test_models_of_different_vocabularies_do_not_translate_together(model: Path, tmp_path: Path) -> None:
    settings = Bpe(init_from=None, vocab_size=30, type="bpe", character_coverage=1.0, sample=None, seed=1, user_symbols=[])
    train_subword(TEXT, tmp_path / "spm.model", settings)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    subword = Subword.load(tmp_path / "spm.model")
    other = ModelConfig.model_validate({**config, "vocabulary": {"size": subword.vocab_size, "hash": subword.hash}})
    assert isinstance(other.model, TransformerSize)
    save_model(tmp_path / "other", dict(Transformer(other.model, subword.vocab_size).state_dict()), other, tmp_path / "spm.model")
    code, line = refusal(call(tmp_path, "translate", "--model", str(model), "--model", "other", stdin=b"the dog\n"))
    assert code == 78
    assert line.endswith("Models that translate together share their vocabulary.")


def test_samples_are_as_many_as_asked_for_and_the_same_again(model: Path, tmp_path: Path) -> None:
    asked = ("--sample", "3", "--temperature", "2", "--top-p", "0.9", "--nbest")
    done = call(tmp_path, "translate", "--model", str(model), *asked, stdin=b"the dog\na cat\n")
    assert [line.split(b"\t")[0] for line in done.stdout.split(b"\n")[:-1]] == [b"1"] * 3 + [b"2"] * 3
    assert call(tmp_path, "translate", "--model", str(model), *asked, stdin=b"the dog\na cat\n").stdout == done.stdout
    assert call(tmp_path, "translate", "--model", str(model), *asked, "--seed", "2", stdin=b"the dog\na cat\n").stdout != done.stdout


def test_translations_begin_with_their_prefixes(model: Path, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_bytes(b"der Hund\n\n")
    done = call(tmp_path, "translate", "--model", str(model), "--prefixes", "prefixes", stdin=b"a cat\na cat\n")
    first, second = done.stdout.decode().split("\n")[:2]
    assert first.startswith("der Hund")
    assert second == call(tmp_path, "translate", "--model", str(model), stdin=b"a cat\n").stdout.decode().rstrip("\n")
    code, line = refusal(call(tmp_path, "translate", "--model", str(model), "--prefixes", "prefixes", stdin=b"a\n" * 3))
    assert (code, line.split(". ")[0]) == (65, "prefixes: fewer lines than the input")


def test_a_device_that_is_not_here_is_one_line(model: Path, tmp_path: Path) -> None:
    code, line = refusal(call(tmp_path, "translate", "--model", str(model), "--device", "cuda:77", stdin=b"the dog\n"))
    assert (code, line) == (78, "--device: cuda:77 asked for, 0 GPUs here") or torch.cuda.is_available()


# --- export


def test_an_export_says_what_was_made_and_where(model: Path, tmp_path: Path) -> None:
    done = call(tmp_path, "export", "--format", "ctranslate2", "--model", str(model), "--out", "ct2")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(r"ct2: a model for CTranslate2, \d+ kB\n", done.stdout.decode())
    assert (tmp_path / "ct2/spm.model").read_bytes() == (model / "spm.model").read_bytes()


def test_an_export_over_a_model_of_ours_is_refused(model: Path, tmp_path: Path) -> None:
    code, line = refusal(call(tmp_path, "export", "--format", "ctranslate2", "--model", str(model), "--out", str(model)))
    assert (code, line) == (78, f"{model}: exists and is no exported model. Name another directory or remove it.")


# --- info


@pytest.mark.parametrize(
    ("preset", "vocab_size", "millions"),
    [
        # The paper's Table 3 says 65 and 213 millions; the vocabularies at which bias-free attention gives them.
        ("base", 41_100, 65.1),
        ("big", 36_000, 213.1),
    ],
)
def test_the_papers_models_have_the_papers_sizes(preset: str, vocab_size: int, millions: float, tmp_path: Path) -> None:
    done = call(tmp_path, "info", "--preset", preset, "--vocab-size", str(vocab_size), "--json")
    parameters = json.loads(done.stdout)["parameters"]
    total = parameters.pop("total")
    assert total == sum(parameters.values())
    assert round(total / 1e6, 1) == pytest.approx(millions, abs=0.05)


def test_without_a_preset_it_is_the_model_of_params_yaml(tmp_path: Path) -> None:
    text = recipes.read("synthetic").replace("preset: tiny", "preset: tiny\n  layers: 1")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    document = json.loads(call(tmp_path, "info", "--json").stdout)
    assert (document["preset"], document["model"]["layers"], document["vocab_size"]) == ("tiny", 1, 2_000)


def test_sizes_are_shown_with_thousands_separated(tmp_path: Path) -> None:
    shown = call(tmp_path, "info", "--preset", "base", "--vocab-size", "37000").stdout.decode()
    assert ["total", "63,045,632", "parameters"] in [line.split() for line in shown.split("\n")]
    assert "65 x 10^6 parameters; ours with 41,100 subwords: 65.1\n" in shown


def test_the_flops_of_a_token_are_six_for_each_weight_it_passes_and_those_of_attention(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(recipes.read("synthetic"), encoding="utf-8")
    document = json.loads(call(tmp_path, "info", "--preset", "base", "--vocab-size", "37000", "--length", "25", "--json").stdout)
    parameters, size = document["parameters"], document["model"]
    # Vectors (norms, biases) are no matrix products. The shared matrix is multiplied once, as the projection.
    vectors = 12 * (2048 + 512) + 30 * 2 * 512
    products = 6 * (parameters["total"] - vectors)
    # 18 attentions, each with 25 scores and 25 weighted sums a head and a token.
    attention = 6 * 18 * 25 * size["heads"] * (size["d_k"] + size["d_v"])
    assert document["training"]["flops_a_token"] == pytest.approx(products + attention, rel=1e-6)
    assert document["training"]["state_bytes"] == 16 * parameters["total"]


@pytest.mark.parametrize(
    ("architecture", "parts"),
    [
        ("recurrent", {"total", "embedding", "encoder", "attention", "decoder", "combine"}),
        ("convolutional", {"total", "embedding", "encoder_convolution", "decoder_convolution", "decoder_attention", "last"}),
    ],
)
def test_the_baselines_have_sizes_too(architecture: str, parts: set[str], tmp_path: Path) -> None:
    done = call(tmp_path, "info", "--architecture", architecture, "--preset", "tiny", "--vocab-size", "2000", "--json")
    document = json.loads(done.stdout)
    assert document["model"]["architecture"] == architecture
    assert document["parameters"]["embedding"] == 2000 * document["model"]["d_model"]
    assert set(document["parameters"]) == parts
    # Each weight matrix is multiplied at least once a token, forward and twice backward.
    assert document["training"]["flops_a_token"] > 6 * 0.9 * document["parameters"]["total"]


def test_an_unknown_preset_names_the_nearest(tmp_path: Path) -> None:
    code, line = refusal(call(tmp_path, "info", "--preset", "bas", "--vocab-size", "100"))
    assert (code, line) == (78, "model.preset: no preset of the architecture transformer is called 'bas'. Nearest: base.")


# --- estimate


def test_an_estimate_at_a_given_rate_is_tokens_over_rate(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(recipes.read("wmt14-en-de-base"), encoding="utf-8")
    arguments = ("--preset", "base", "--rate", "10000", "--devices", "8", "--price", "2")
    document = json.loads(call(tmp_path, "estimate", *arguments, "--json").stdout)
    assert document["target_tokens"] == 2_500_000_000
    assert document["hours"] == pytest.approx(2.5e9 / 80_000 / 3600)
    assert document["cost"] == pytest.approx(2 * document["hours"])
    shown = call(tmp_path, "estimate", *arguments).stdout.decode()
    assert "100,000 updates of 25,000 tokens: at most 2.5e+09 target tokens" in shown
    assert "the paper's base: 100,000 updates of 25,000 tokens, 3.3e18 FLOPs, 12 hours on 8 P100" in shown


def test_an_estimate_without_a_rate_measures_this_machines(tmp_path: Path) -> None:
    params = re.sub("tokens_per_(update|microbatch): .*", r"tokens_per_\1: 256", recipes.read("synthetic"))
    (tmp_path / "params.yaml").write_text(params.replace("bpe_dropout: 0\n", "bpe_dropout: 0.1\n"), encoding="utf-8")
    document = json.loads(call(tmp_path, "estimate", "--json").stdout)
    assert "256 tokens before BPE-dropout" in call(tmp_path, "estimate", "--rate", "1").stdout.decode()
    assert document["tokens_per_second"] > 0
    assert (document["devices"], document["busy_devices"]) == (1, 1)
    assert document["hours"] == pytest.approx(document["target_tokens"] / document["tokens_per_second"] / 3600)


@pytest.mark.parametrize(("devices", "busy"), [(3, 8 / 3), (8, 8), (16, 8)])
def test_devices_without_a_micro_batch_make_nothing_faster(devices: int, busy: float, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(recipes.read("wmt14-en-de-base"), encoding="utf-8")
    document = json.loads(call(tmp_path, "estimate", "--rate", "10000", "--devices", str(devices), "--json").stdout)
    assert document["busy_devices"] == pytest.approx(busy)
    assert document["hours"] == pytest.approx(2.5e9 / (10_000 * busy) / 3600)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("estimate", "--length", "1000"), "--length: a micro-batch holds 640 tokens, and a sentence 1000"),
        (
            ("info", "--preset", "table3/E-learned", "--length", "1025"),
            "--length: the model has 1024 positions, and a sentence 1025 tokens",
        ),
        (("info", "--preset", "base", "--vocab-size", "16"), "must be a whole number above 16, got '16'"),
    ],
)
def test_a_sentence_or_vocabulary_that_no_model_can_have_is_refused(arguments: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(
        re.sub("tokens_per_microbatch: .*", "tokens_per_microbatch: 640", recipes.read("synthetic")), encoding="utf-8"
    )
    code, line = refusal(call(tmp_path, *arguments))
    assert code == 78
    assert fault in line


def test_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    code, line = refusal(call(tmp_path, "estimate", "--preset", "base", "--rate", "0"))
    assert code == 78
    assert "--rate: must be a number above 0, got '0'" in line


# --- recipe


def test_recipes_are_listed_with_what_they_are_for(tmp_path: Path) -> None:
    lines = call(tmp_path, "recipe").stdout.decode().split("\n")[:-1]
    assert [line.split("  ")[0] for line in lines] == recipes.names()
    assert all(line.endswith(recipes.description(name)) for line, name in zip(lines, recipes.names(), strict=True))


def test_a_recipe_is_written_but_not_over_an_edited_one(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    done = call(tmp_path, "recipe", "synthetic")
    assert (done.returncode, done.stdout) == (0, b"params.yaml is the recipe synthetic. Next: dvc repro\n")
    assert call(tmp_path, "recipe", "multi30k").returncode == 0
    assert params.read_bytes() == recipes.read("multi30k").encode()
    params.write_text(params.read_text(encoding="utf-8").replace("seed: 1", "seed: 2"), encoding="utf-8")
    kept = refusal(call(tmp_path, "recipe", "synthetic"))
    assert kept == (78, "params.yaml: differs from every recipe and would be lost. Keep a copy, then repeat with --force.")
    assert call(tmp_path, "recipe", "synthetic", "--force").returncode == 0
    assert params.read_bytes() == recipes.read("synthetic").encode()


# --- data


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    (tmp_path / "text.en").write_text("".join(f"sentence {number}\n" for number in range(100)), encoding="utf-8")
    (tmp_path / "text.de").write_text("".join(f"Satz {number}\n" for number in range(100)), encoding="utf-8")
    return tmp_path


def test_own_files_become_a_corpus_and_a_params_file(own_files: Path) -> None:
    done = call(own_files, "data", "new", "mine", "text.en", "text.de")
    closing = b"corpora/mine.yaml names 100 pairs of en and de; params.yaml trains on them. Next: dvc repro\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, closing, b"")
    params = load_params(own_files / "params.yaml")
    assert (params.download.corpus, params.download.source, params.download.target) == ("mine", "en", "de")
    assert (params.bpe.vocab_size, params.publish.name) == (400, "mine-en-de")


def test_languages_and_held_out_lines_can_be_said(own_files: Path) -> None:
    (own_files / "text.en").rename(own_files / "a.txt")
    said = ("--source-language", "pt", "--target-language", "gl", "--valid-lines", "7", "--test-lines", "9")
    assert call(own_files, "data", "new", "mine", "a.txt", "text.de", *said).returncode == 0
    params = load_params(own_files / "params.yaml")
    assert (params.download.source, params.download.target) == ("pt", "gl")
    entry = (own_files / "corpora" / "mine.yaml").read_text(encoding="utf-8")
    assert "holdout: 7" in entry
    assert "holdout: 9" in entry


def test_own_data_does_not_replace_an_edited_params_file(own_files: Path) -> None:
    (own_files / "params.yaml").write_text("mine: 1\n", encoding="utf-8")
    code, line = refusal(call(own_files, "data", "new", "mine", "text.en", "text.de"))
    assert (code, line.split(". ")[0]) == (78, "params.yaml: differs from every recipe and would be lost")
    assert not (own_files / "corpora").exists()
    assert call(own_files, "data", "new", "mine", "text.en", "text.de", "--force").returncode == 0


def test_sides_of_unequal_length_leave_nothing_behind(own_files: Path) -> None:
    with (own_files / "text.de").open("a", encoding="utf-8") as file:
        file.write("einer mehr\n")
    code, line = refusal(call(own_files, "data", "new", "mine", "text.en", "text.de"))
    assert (code, line.split(". ")[0]) == (65, "text.en: 100 lines, but text.de has 101")
    assert sorted(path.name for path in own_files.iterdir()) == ["text.de", "text.en"]


@pytest.mark.slow  # about 30 seconds: nine stages, most of it importing torch and mlflow
def test_own_data_is_three_commands_to_a_translation(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\0")[:-1]:
        if name != "dvc.lock" and (REPOSITORY / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    pairs = list(generate("train", 400, seed=3))
    write_lines(tmp_path / "mine.en", [pair.source for pair in pairs])
    write_lines(tmp_path / "mine.de", [pair.target for pair in pairs])

    assert call(tmp_path, "data", "new", "mine", "mine.en", "mine.de").returncode == 0
    # The recipe's model would train for most of an hour.
    small = {"layers": 1, "d_model": 32, "heads": 2, "d_ff": 64}, {"updates": 20, "validate_every": 10, "save_every": 5, "keep": 2}
    yaml = YAML()
    params = yaml.load(tmp_path / "params.yaml")
    for section, values in zip(("model", "train", "average"), (*small, {"of": "last", "count": 2}), strict=True):
        params[section].update(values)
    yaml.dump(params, tmp_path / "params.yaml")
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["dvc", "repro"], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    translated = call(tmp_path, "translate", "--model", "models/averaged", stdin=b"The dog sleeps.\nThe cat sees the house.\n")

    assert (translated.returncode, translated.stdout.count(b"\n")) == (0, 2), translated.stderr
    assert json.loads((tmp_path / "results" / "published.json").read_text(encoding="utf-8"))["name"] == "mine-en-de"


def test_synthetic_pairs_are_printed_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first = call(tmp_path, "data", "synthetic", "--pairs", "20", "--seed", "7").stdout.decode()
    assert [line.count("\t") for line in first.split("\n")] == [1] * 20 + [0]
    assert call(tmp_path, "data", "synthetic", "--pairs", "20", "--seed", "7").stdout.decode() == first
    with_trees = call(tmp_path, "data", "synthetic", "--pairs", "20", "--seed", "7", "--trees").stdout.decode()
    rows = [line.split("\t") for line in with_trees.split("\n")[:-1]]
    assert ["\t".join(row[:2]) for row in rows] == first.split("\n")[:-1]
    assert all(row[2].startswith("(") and row[2].count("(") == row[2].count(")") for row in rows)


# --- doctor


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing wrong with it, and an environment that names no service."""
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text(recipes.read("synthetic"), encoding="utf-8")
    return tmp_path


def finding(folder: Path, name: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine(folder) if finding.name == name)


def test_nothing_is_wrong_with_a_fresh_clone(healthy: Path) -> None:
    done = call(healthy, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert list(findings) == [
        "python",
        "torch",
        "cuda",
        "precision",
        "threads",
        "memory",
        "disk",
        "repository",
        "params",
        "mlflow",
        "prefect",
    ]
    assert done.returncode == 0
    assert findings["prefect"]["detail"] == "none configured: a temporary server is used"


def test_a_problem_is_a_line_with_a_remedy_and_its_exit_code(healthy: Path) -> None:
    (healthy / "params.yaml").write_text(recipes.read("synthetic").replace("  warmup: ", "  warmup: x  # "), encoding="utf-8")
    done = call(healthy, "doctor")
    assert done.returncode == 78
    problems = [line for line in done.stdout.decode().split("\n") if line.startswith("problem")]
    assert len(problems) == 1
    assert problems[0].endswith("train.warmup: must be a whole number above 0, got 'x'")


@pytest.mark.parametrize(
    ("missing", "detail"), [(".git", "git says: not a git repository"), (".dvc", "no .dvc folder here"), ("dvc.yaml", "no dvc.yaml here")]
)
def test_a_folder_that_is_no_repository_is_a_problem(missing: str, detail: str, healthy: Path) -> None:
    (healthy / missing).rename(healthy / "away")
    found = finding(healthy, "repository")
    assert (found.status, found.exit_code) == ("problem", ExitCode.BAD_CONFIGURATION)
    assert found.detail.startswith(detail)
    assert found.remedy


class Health(BaseHTTPRequestHandler):
    """Answers /health and /api/health, and asks who is there at /login/health."""

    def do_GET(self) -> None:
        self.send_response({"/health": 200, "/api/health": 200, "/login/health": 401}.get(self.path, 500))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Health)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_services_that_answer_are_well(service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{service}/login")
    (healthy / "prefect").mkdir()
    profile = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{service}/api"\n'
    (healthy / "prefect" / "profiles.toml").write_text(profile, encoding="utf-8")
    assert finding(healthy, "mlflow").status == "ok"
    assert finding(healthy, "prefect").detail == f"{service}/api answers"


def test_a_service_that_fails_is_a_problem(service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{service}/broken")
    found = finding(healthy, "mlflow")
    assert (found.status, found.exit_code) == ("problem", ExitCode.UNAVAILABLE)
    assert "answers 500" in found.detail


@pytest.mark.parametrize(("name", "variable"), [("mlflow", "MLFLOW_TRACKING_URI"), ("prefect", "PREFECT_API_URL")])
def test_a_service_that_is_away_is_a_problem(name: str, variable: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")  # The port "discard", which nothing listens on.
    found = finding(healthy, name)
    assert (found.status, found.exit_code) == ("problem", ExitCode.UNAVAILABLE)
    assert found.detail == "http://127.0.0.1:9: not reachable ([Errno 111] Connection refused)"
    assert found.remedy


def test_a_data_plan_names_files_sums_terms_and_disk_and_fetches_nothing(tmp_path: Path) -> None:
    done = call(tmp_path, "data", "plan", "multi30k", HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
    said = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert said.startswith("multi30k, en to de: about 29,000 training pairs\nTerms: no licence is stated. Captions of")
    assert "train  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.de.gz\n" in said
    assert "fetched, sum: sha256 726e39b2fa9e..." in said
    assert "train.fr.gz" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_a_data_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "own-data":
        with pytest.raises(UserError, match="no corpus is called"):
            plan_data(recipes.load(name))
        return
    plan = plan_data(recipes.load(name))
    assert {file.split for file in plan.files} == {"train", "valid", "test"}
    assert plan.disk_at_most > sum(plan.disk.values()) > 0


def test_sums_that_were_locked_stand_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora/web.yaml").write_text(
        "name: web\nlanguages: [en, de]\nlicence: CC0\nnote: ''\nsplits:\n"
        "  train: [{https: {en: {url: 'https://a.example/t.en'}, de: {url: 'https://a.example/t.de'}}}]\n"
        "  valid: [{holdout: 10}]\n  test: [{holdout: 10}]\n",
        encoding="utf-8",
    )
    (tmp_path / "corpora/web.lock").write_text(json.dumps({"https://a.example/t.en": "ab" * 32}), encoding="utf-8")
    (tmp_path / "params.yaml").write_text(recipes.read("synthetic").replace("corpus: synthetic", "corpus: web"), encoding="utf-8")
    plan = json.loads(call(tmp_path, "data", "plan", "--json").stdout)
    assert [file["checked_by"] for file in plan["files"][:2]] == ["sha256 abababababab...", "locked at the first fetch"]
    assert (plan["licence"], plan["pairs"], plan["disk"]) == ("CC0", None, {})
