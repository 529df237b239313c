"""transformer-core translate and export."""

import gzip
import lzma
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import COMMAND, SIZE, Call
from tests.models.on_disk import VOCAB, overflowing_in_fp16, write_drawn, write_model
from transformer_core import recipes
from transformer_core.cli import translate as command
from transformer_core.decoding.engine import Engine
from transformer_core.decoding.translator import Translator
from transformer_core.files import read_json, sha256_of, write_json
from transformer_core.models.architectures import build


@pytest.fixture
def model(models: Path) -> Path:
    return models / "transformer"


@pytest.fixture
def translate(call: Call, model: Path) -> Call:
    return partial(call, "translate", "--model", model)


def test_every_line_gets_a_line_and_an_empty_one_stays_empty(translate: Call) -> None:
    done = translate(stdin=b"a cat\n\n  \na cat\nlast line without an end")
    assert (done.code, done.err) == (0, "")
    lines = done.out.split("\n")
    assert len(lines) == 6
    assert lines[0] == lines[3] != ""
    assert lines[1:3] == ["", ""]
    assert lines[5] == ""


def test_lines_end_at_line_feeds_only(translate: Call) -> None:
    assert translate(stdin="the\x85dog\u2028sees\x0b\x0ca\rcat\n".encode()).out.count("\n") == 1


def test_n_best_gives_number_score_log_probability_and_text(translate: Call) -> None:
    stdin = b"the dog\na cat\n"
    rows = [line.split("\t") for line in translate("--beam", "3", "--alpha", "1", "--nbest", stdin=stdin).out.split("\n")[:-1]]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert all(float(row[2]) < 0 for row in rows)
    # The engine of --nbest; the other one, unasked without it, has no empty output.
    assert translate("--beam", "3", "--alpha", "1", "--engine", "torch", stdin=stdin).out.split("\n")[:-1] == [rows[0][3], rows[3][3]]
    scored = translate("--beam", "3", "--alpha", "1", "--scores", stdin=stdin).out.split("\n")[:-1]
    assert scored == ["\t".join(rows[0][1:]), "\t".join(rows[3][1:])]


def test_a_line_that_is_no_text_is_named(translate: Call) -> None:
    line = "<stdin>:2: not valid UTF-8 (byte 0xff at column 3). Re-encode the file as UTF-8."
    assert translate(stdin=b"the dog\nth\xff\n").refusal() == (65, line)


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


def test_a_person_at_a_terminal_gets_a_prompt_for_each_line_until_the_end_of_input(model: Path, tmp_path: Path) -> None:
    keyboard, terminal = pty.openpty()
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    process = subprocess.Popen([COMMAND, "translate", "--model", model], cwd=tmp_path, **streams)
    os.close(terminal)
    shown = b""
    for prompts, typed in ((1, b"the dog\n"), (2, b"\x04")):
        while shown.count(b"> ") < prompts:
            shown += os.read(keyboard, 4096)
        os.write(keyboard, typed)
    with suppress(OSError):  # Nobody holds the other end any more.
        while os.read(keyboard, 4096):
            pass
    os.close(keyboard)
    assert process.wait(60) == 0


def interrupt(process: "subprocess.Popen[bytes]") -> bytes:
    """Interrupt a process that waits for input, and return its standard error.

    A signal between Python's last check for signals and the system call that waits is only handled after the next one.
    """
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[1]
    raise AssertionError("still there")


def test_a_line_longer_than_max_input_is_cut_or_left_empty_and_the_others_come_out(translate: Call) -> None:
    stdin = b"a cat\n" + b"a cat sees the dog " * 2_000 + b"\nder Hund\n"
    plain = translate(stdin=b"a cat\nder Hund\n").out.split("\n")
    assert all(plain[:2])
    cut = translate("--max-input", "20", stdin=stdin)
    assert (cut.code, cut.out.count("\n"), cut.out.split("\n")[0::2]) == (0, 3, [plain[0], plain[1]])
    assert re.fullmatch(r"line 2: \d\d,\d{3} tokens, cut to 20\n", cut.err)
    refused = translate("--max-input", "20", "--longer", "refuse", stdin=stdin)
    assert (refused.code, refused.out) == (65, f"{plain[0]}\n\n{plain[1]}\n")
    assert re.fullmatch(r"line 2: \d\d,\d{3} tokens, more than 20, left empty\n", refused.err)


def test_a_line_longer_than_the_learned_positions_is_cut_to_them(models: Path, call: Call) -> None:
    done = call("translate", "--model", models / "learned", stdin=b"the dog\nthe dog sees a cat the dog sees a cat\n")
    assert (done.code, done.out.count("\n")) == (0, 2)
    assert re.fullmatch(r"line 2: \d+ tokens, cut to 5\n", done.err)


def test_files_are_read_and_written_as_standard_input_and_output_are(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"the dog\n\na cat\n")
    piped = translate(stdin=b"the dog\n\na cat\n")
    assert translate("--out", "out", "lines") == (0, "", "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == piped.out
    assert translate("--interactive", "lines").out == piped.out
    assert translate("--out", ".", "lines").refusal() == (78, "--out: . is a directory. Name a file.")
    assert translate("--out", "o.gz", "lines").refusal() == (
        78, "--out: o.gz would be plain text under the name of a packed file. Leave out the ending."
    )  # fmt: skip


def test_a_file_that_fails_in_the_middle_leaves_no_output_behind(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"the dog\n" * 2_000 + b"th\xff\n")
    code, line = translate("--beam", "1", "--out", "out", "lines").refusal()
    assert (code, line.split(" (")[0]) == (65, "lines:2001: not valid UTF-8")
    assert [path.name for path in tmp_path.iterdir() if not path.is_symlink()] == ["lines"]


def test_a_subword_model_of_another_size_than_the_weights_is_refused(call: Call, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "mixed")
    other = write_drawn(tmp_path / "other", vocab_size=30)
    shutil.copyfile(other / "spm.model", tmp_path / "mixed/spm.model")
    config = tmp_path / "mixed/config.json"
    config.write_text(config.read_text().replace(*(sha256_of(folder / "spm.model") for folder in (model, other))))
    line = "mixed/spm.model: 30 subwords, but the weights are for 40"
    assert call("translate", "--model", "mixed", stdin=b"the dog\n").refusal() == (65, line)


def test_models_translate_together_where_they_share_their_vocabulary(translate: Call, model: Path, tmp_path: Path) -> None:
    alone = translate("--engine", "torch", stdin=b"the dog\na cat\n")
    assert translate("--model", model, stdin=b"the dog\na cat\n") == (0, alone.out, "")
    write_drawn(tmp_path / "other", vocab_size=30)
    code, line = translate("--model", "other", stdin=b"the dog\n").refusal()
    assert code == 78
    assert line.endswith("Models that translate together share their vocabulary.")


def test_models_translate_together_only_in_one_direction(translate: Call, model: Path, tmp_path: Path) -> None:
    back = shutil.copytree(model, tmp_path / "back")
    write_json(back / "config.json", read_json(back / "config.json") | {"source": "de", "target": "en"})
    code, line = translate("--model", back, stdin=b"a cat\n").refusal()
    assert (code, line) == (78, f"{back}: translates de to en, but {model} en to de. Models that translate together have one direction.")


def test_settings_of_stage_decode_are_the_defaults_and_options_win(translate: Call, tmp_path: Path) -> None:
    settings = {"beam": "3", "penalty": "power", "alpha": "1.5", "max_extra": "3", "precision": "float64", "engine": "torch"}
    text = recipes.read("tatoeba")
    for name, value in settings.items():
        before, decode, after = text.partition("\ndecode:\n")
        text = before + decode + re.sub(rf"^  {name}: .*$", f"  {name}: {value}", after, count=1, flags=re.MULTILINE)
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    stdin, given = b"the dog\na cat\n", ("--params", "params.yaml", "--nbest", "--verbose")
    asked = translate(*given[2:], *options, stdin=stdin)
    assert asked.err.startswith("engine torch, float64, on ")
    assert translate(*given, stdin=stdin) == asked
    assert translate(*given, "--alpha", "0.5", stdin=stdin) == translate(*given[2:], *options, "--alpha", "0.5", stdin=stdin) != asked
    fault = "--params: not with --sample. Leave it out: its settings are those of beam search."
    assert translate(*given, "--sample", "2", stdin=stdin).refusal() == (78, fault)


def test_samples_are_as_many_as_asked_for_and_the_same_again(translate: Call) -> None:
    asked = ("--sample", "3", "--temperature", "2", "--top-p", "0.9", "--nbest")
    done = translate(*asked, stdin=b"the dog\na cat\n")
    assert [line.split("\t")[0] for line in done.out.split("\n")[:-1]] == ["1"] * 3 + ["2"] * 3
    assert translate(*asked, stdin=b"the dog\na cat\n").out == done.out
    assert translate(*asked, "--seed", "2", stdin=b"the dog\na cat\n").out != done.out


def test_translations_begin_with_their_prefixes(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_bytes(b"der Hund\n\n")
    first, second = translate("--prefixes", "prefixes", stdin=b"a cat\na cat\n").out.split("\n")[:2]
    assert first.startswith("der Hund")
    assert second == translate(stdin=b"a cat\n").out.rstrip("\n")
    code, line = translate("--prefixes", "prefixes", stdin=b"a\n" * 3).refusal()
    assert (code, line.split(". ")[0]) == (65, "prefixes: fewer lines than the input")
    code, line = translate("--prefixes", "prefixes", "--out", "out", stdin=b"a\n").refusal()
    assert (code, line.split(". ")[0]) == (65, "prefixes: has more lines than the input")
    assert not (tmp_path / "out").exists()


def test_a_prefix_with_an_unknown_character_has_a_translation(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("\u732b\n\n", encoding="utf-8")
    for how in ((), ("--sample", "2")):
        done = translate("--prefixes", "prefixes", *how, stdin=b"a cat\na cat\n")
        assert (done.out.count("\n"), done.err) == (2, "line 1: its prefix has a character that the vocabulary lacks\n")


def test_a_prefix_of_more_tokens_than_positions_is_cut_with_a_note(call: Call, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("der Hund sieht eine Katze eine Katze\n", encoding="utf-8")
    done = call("translate", "--model", "learned", "--prefixes", "prefixes", stdin=b"a cat\n")
    assert re.fullmatch(r"line 1: its prefix has \d+ tokens, cut to 5\n", done.err)


@pytest.mark.parametrize(
    "arguments",
    [
        "--out lines lines",
        "--out lines linked",
        "--out linked --prefixes lines other",
        "--out linked --params lines other",
        "--out linked --model model other",
    ],
)
def test_a_file_that_is_read_is_not_replaced(arguments: str, translate: Call, tmp_path: Path) -> None:
    for name in ("lines", "other"):
        (tmp_path / name).write_bytes(b"a cat\n")
    (tmp_path / "linked").symlink_to("lines")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/spm.model").symlink_to(tmp_path / "lines")
    out = arguments.split()[1]
    line = f"--out: {out} is an input file and would be replaced. Name another file."
    assert translate(*arguments.split()).refusal() == (78, line)
    assert (tmp_path / "lines").read_bytes() == b"a cat\n"


def test_packed_files_are_read_and_a_damaged_one_is_named(translate: Call, tmp_path: Path) -> None:
    stdin, prefixes = b"the dog\n\na cat\n", b"der Hund\n\n\n"
    (tmp_path / "prefixes").write_bytes(prefixes)
    for name, text in (("lines.gz", stdin), ("prefixes.gz", prefixes)):
        (tmp_path / name).write_bytes(gzip.compress(text))
    done = translate("--prefixes", "prefixes", stdin=stdin)
    assert translate("--prefixes", "prefixes.gz", "lines.gz") == done
    assert done.out.startswith("der Hund")
    (tmp_path / "lines.gz").write_bytes((tmp_path / "lines.gz").read_bytes()[:-9])
    assert translate("--engine", "torch", "lines.gz").refusal() == (65, "lines.gz: damaged gzip file. Get it again.")
    (tmp_path / "lines.xz").write_bytes(lzma.compress(b"the dog\nth\xff\n"))
    line = "lines.xz:2: not valid UTF-8 (byte 0xff at column 3). Re-encode the file as UTF-8."
    assert translate("lines.xz").refusal() == (65, line)


def test_a_file_that_is_standard_input_is_not_replaced(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a cat\n")
    saved = os.dup(0)
    try:
        with (tmp_path / "lines").open("rb") as lines:
            os.dup2(lines.fileno(), 0)
        assert translate("--out", "lines").refusal()[0] == 78
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    assert (tmp_path / "lines").read_bytes() == b"a cat\n"


@pytest.mark.parametrize("out", ["/dev/stdout", "/dev/stderr", "all.de"])
def test_a_file_that_a_standard_stream_is_appended_to_keeps_what_is_in_it(tmp_path: Path, out: str) -> None:
    (tmp_path / "all.de").write_text("before\n")
    code = f"with _written(Path({out!r})) as file: file.write(b'after\\n')"
    code = f"from pathlib import Path\nfrom transformer_core.cli.translate import _written\n{code}"
    with (tmp_path / "all.de").open("ab") as stream:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=stream, stderr=stream, check=True)
    assert (tmp_path / "all.de").read_text() == "before\nafter\n"


def test_the_output_goes_through_a_link_and_into_a_pipe(translate: Call, tmp_path: Path) -> None:
    expected = translate(stdin=b"a cat\n").out
    (tmp_path / "real").write_text("earlier", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    translate("--out", "link", stdin=b"a cat\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == expected
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        translate("--out", "pipe", stdin=b"a cat\n")
        assert reader.communicate(timeout=30)[0] == expected
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("how", [(), ("--beam", "1"), ("--sample", "2")], ids=str)
def test_a_model_that_overflows_in_fp16_is_refused_instead_of_lines_left_out(how: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    write_model(overflowing_in_fp16(build(replace(SIZE, norm="pre"), VOCAB)), tmp_path / "large")
    stdin = b"the dog\n\na cat\nthe dog sees a cat\n"
    assert call("translate", "--model", "large", *how, stdin=stdin).out.count("\n") == 4
    line = "precision fp16: the logits of a sentence are not finite. Take bf16 or float32."
    assert call("translate", "--model", "large", "--precision", "fp16", *how, stdin=stdin).refusal() == (78, line)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--temperature", "5"), "--temperature: needs --sample. For example --sample 5."),
        (("--sample", "2", "--top-k", "3", "--beam", "7"), "--beam: not with --sample. Leave it out: samples are drawn without a beam."),
        (
            ("--coverage", "0.2", "--engine", "ctranslate2"),
            "engine ctranslate2: CTranslate2 has another coverage penalty. Take the engine torch or auto.",
        ),
    ],
)
def test_options_of_another_search_or_engine_are_refused(options: tuple[str, ...], fault: str, translate: Call) -> None:
    assert translate(*options, stdin=b"a cat\n").refusal() == (78, fault)


def test_a_bar_leaves_a_pipe_to_the_translation(model: Path, tmp_path: Path) -> None:
    """In a terminal the bar counts the lines of a file beforehand; those of a pipe can be read only once."""
    os.mkfifo(tmp_path / "pipe")
    keyboard, terminal = pty.openpty()
    command = [COMMAND, "translate", "--model", model, "--out", "out", "pipe"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=terminal)
    os.close(terminal)
    (tmp_path / "pipe").write_bytes(b"the dog\na cat\n")
    with suppress(OSError):  # Nobody holds the other end any more.
        while os.read(keyboard, 4096):
            pass
    os.close(keyboard)
    assert process.wait(60) == 0
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


ENGINES: list[tuple[tuple[str, ...], str]] = [
    ((), "engine ctranslate2, float32, on cpu, 1 CPU threads: the faster one on a CPU"),
    (("--scores",), "engine torch, float32, on cpu, 1 CPU threads: CTranslate2's scores are conditional on the absence of special tokens"),
    (("--scores", "--engine", "ctranslate2"), "engine ctranslate2, float32, on cpu, 1 CPU threads: as asked"),
    (("--beam", "1", "--engine", "torch"), "engine torch, float32, on cpu, 1 CPU threads: as asked"),
]


@pytest.mark.parametrize(("options", "line"), ENGINES)
def test_the_engine_is_named_with_the_reason_for_it(options: tuple[str, ...], line: str, translate: Call) -> None:
    done = translate("--device", "cpu", "--verbose", *options, stdin=b"the dog\n")
    assert (done.code, done.err) == (0, f"{line}\n")


@pytest.mark.parametrize(("fast", "name"), [(True, "bf16"), (False, "float32")])
def test_an_automatic_precision_is_named_as_what_it_is(fast: bool, name: str, translate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_core.models.precision.has_fast_bf16", lambda _: fast)
    done = translate("--device", "cpu", "--verbose", "--precision", "auto", stdin=b"the dog\n")
    assert (done.code, done.err.split(" on ")[0]) == (0, f"engine torch, {name},")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_batches_at_once_are_as_many_as_the_threads_asked_for(engine: str, translate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Engine] = []
    monkeypatch.setattr(command, "_report", lambda _, loaded, __: seen.append(loaded))
    assert translate("--device", "cpu", "--verbose", "--threads", "3", "--engine", engine, stdin=b"the dog\n").code == 0
    (loaded,) = seen
    assert (1 + len(loaded.replicas) if isinstance(loaded, Translator) else loaded.translator.num_translators) == 3


def test_either_engine_writes_the_same_greedy_text_whatever_the_chunks(
    translate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"the dog\n\na cat sees a house\nthe cat\n" * 5)
    ours = translate("--beam", "1", "--engine", "torch", "lines").out
    assert ours.count("\n") == 20
    monkeypatch.setattr(command, "LINES_AT_ONCE", {"torch": 7, "ctranslate2": 3})
    for options in ((), ("--interactive",), ("--engine", "torch")):
        assert translate("--beam", "1", "lines", *options).out == ours


def test_gpus_that_cuda_cannot_use_are_none(translate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver lists them, and CUDA does not start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert translate("--device", "cuda", stdin=b"the dog\n").refusal() == (78, "--device: cuda requested, 0 GPUs here")


def test_what_is_not_here_is_named(model: Path, call: Call, translate: Call) -> None:
    code, line = call("translate", "--model", "nowhere").refusal()
    assert (code, line.split(". ")[0]) == (65, "nowhere/config.json: no such file")
    code, line = translate("nowhere").refusal()
    assert (code, line.split(". ")[0]) == (65, "nowhere: no such file")
    (shutil.copytree(model, Path("copied")) / "spm.model").unlink()
    line = "copied/spm.model: no such file. A model directory holds model.safetensors, config.json and spm.model."
    for engine in ("torch", "ctranslate2"):
        assert call("translate", "--model", "copied", "--engine", engine, stdin=b"the dog\n").refusal() == (65, line)
    Path("folder").mkdir()
    assert translate("folder").refusal() == (65, "folder: is a folder. Name a file.")
    if not torch.cuda.is_available():
        assert translate("--device", "cuda:77", stdin=b"the dog\n").refusal() == (78, "--device: cuda:77 requested, 0 GPUs here")


def test_an_export_says_what_was_made_and_where_but_not_over_a_model_of_ours(model: Path, call: Call, tmp_path: Path) -> None:
    done = call("export", "--format", "ctranslate2", "--model", model, "--out", "ct2")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"ct2: a model for CTranslate2, \d+ kB\n", done.out)
    assert (tmp_path / "ct2/spm.model").read_bytes() == (model / "spm.model").read_bytes()
    remedy = "Name the folder of the model that was exported, for example models/averaged."
    line = f"ct2: an export for CTranslate2, not a model directory. {remedy}"
    for engine in ("auto", "torch", "ctranslate2"):
        assert call("translate", "--model", "ct2", "--engine", engine, stdin=b"the dog\n").refusal() == (65, line)
    line = "--out: is the working directory, which would be replaced. Name a new folder."
    assert call("export", "--format", "ctranslate2", "--model", model, "--out", ".").refusal() == (78, line)
    line = f"{model}: exists and is no exported model. Name another directory or remove it."
    assert call("export", "--format", "ctranslate2", "--model", model, "--out", model).refusal() == (78, line)
