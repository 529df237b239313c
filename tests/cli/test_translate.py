"""transformer-core translate and export."""

import os
import pty
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch

from tests.cli.conftest import COMMAND, Call
from tests.models.on_disk import write_drawn
from tests.waiting import wait_for
from transformer_core.cli import translate as command
from transformer_core.config import Decode
from transformer_core.files import read_json, sha256_of, write_json


@pytest.fixture
def model(models: Path) -> Path:
    return models / "transformer"


@pytest.fixture
def translate(call: Call, model: Path) -> Call:
    return partial(call, "translate", "--model", model)


def test_every_line_gets_a_line_and_an_empty_one_stays_empty(translate: Call) -> None:
    done = translate(stdin="a cat\n\n  \na cat\nthe\tdog\u2028sees\x0b\x0ca\rcat\n{".encode())  # Only a line feed ends a line.
    assert (done.code, done.err.split(": ")[0]) == (0, "lines with unknown characters, which are left out")
    first, *empty, fourth, _, _, end = done.out.split("\n")
    assert first == fourth != ""
    assert [*empty, end] == [""] * 3


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


def test_a_person_at_a_terminal_gets_a_prompt_and_an_answer_for_each_line_until_the_end_of_input(model: Path, tmp_path: Path) -> None:
    keyboard, terminal = pty.openpty()
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    process = subprocess.Popen([COMMAND, "translate", "--model", model], cwd=tmp_path, **streams)
    os.close(terminal)
    shown = b""
    for prompts, typed in ((1, b"the dog\n"), (2, b"\x04")):
        while shown.count(b"> ") < prompts:
            shown += os.read(keyboard, 4096)
        os.write(keyboard, typed)
    with suppress(OSError):  # Until nobody holds the other end any more.
        while os.read(keyboard, 4096):
            pass
    os.close(keyboard)
    assert process.wait(300) == 0
    assert re.fullmatch(rb"> the dog\s+.*\w.*\s+> ", shown)


def test_a_line_longer_than_those_of_the_training_is_translated_in_parts(models: Path, call: Call, model: Path, tmp_path: Path) -> None:
    stdin = b"the dog\nthe dog sees a cat the dog sees a cat\n"
    assert call("translate", "--model", models / "learned", stdin=stdin).err.startswith("lines of more than 5 tokens, ")
    trained = shutil.copytree(model, tmp_path / "trained")
    write_json(trained / "config.json", read_json(trained / "config.json") | {"longest_source": 19})
    done = call("translate", "--model", trained, stdin=stdin)
    assert done.err.startswith("lines of more than 19 tokens, ")
    assert done.out == call("translate", "--model", model, "--max-input", "19", stdin=stdin).out
    assert done.out != call("translate", "--model", model, stdin=stdin).out


def test_files_are_translated_and_a_failed_run_leaves_its_lines(translate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LINES_AT_ONCE", {"torch": 2, "ctranslate2": 2})
    (tmp_path / "lines").write_bytes(b"the dog\n" * 8)
    piped = translate(stdin=b"the dog\n" * 8).out
    assert translate("--interactive", "lines").out == piped
    assert translate("--out", "out", "lines") == (0, "", "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == piped
    (tmp_path / "lines").write_bytes(b"the dog\n" * 8 + b"th\xff\n")
    (tmp_path / "out").write_bytes(b"earlier\n")
    code, line = translate("--out", "out", "lines").refusal()
    assert (code, line.split(" (")[0]) == (65, "lines:9: not valid UTF-8")
    finished = (tmp_path / "out.part").read_text(encoding="utf-8")
    assert finished == translate(stdin=b"the dog\n").out * finished.count("\n") != ""
    assert (tmp_path / "out").read_bytes() == b"earlier\n"
    assert translate("--out", "out", stdin=b"a cat\n").code == 0
    assert not (tmp_path / "out.part").exists()
    assert translate("--out", "other", stdin=b"th\xff\n").code == 65  # Without a finished line.
    assert not [*tmp_path.glob("other*")]
    (tmp_path / "o.part").write_bytes(b"the dog\n")
    assert translate("--out", "o", "o.part").refusal()[0] == 78
    assert (tmp_path / "o.part").read_bytes() == b"the dog\n"


def test_an_interrupt_leaves_the_finished_lines_beside_the_output(model: Path, tmp_path: Path) -> None:
    arguments = [COMMAND, "translate", "--model", model, "--interactive", "--out", "out"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"the dog\na cat\n")
    process.stdin.flush()
    part = tmp_path / "out.part"
    wait_for(lambda: part.exists() and part.read_bytes().count(b"\n") == 2, process=process)
    error = b""
    while process.returncode is None:  # A signal just before the system call that waits is only handled after the next one.
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            error = process.communicate(timeout=10)[1]
    assert (process.returncode, error) == (75, b"transformer-core: interrupted\n")
    assert part.read_bytes().count(b"\n") == 2
    assert not (tmp_path / "out").exists()


def test_a_subword_model_of_another_size_than_the_weights_is_refused(call: Call, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "mixed")
    other = write_drawn(tmp_path / "other", vocab_size=30)
    shutil.copyfile(other / "spm.model", tmp_path / "mixed/spm.model")
    config = tmp_path / "mixed/config.json"
    config.write_text(config.read_text().replace(*(sha256_of(folder / "spm.model") for folder in (model, other))))
    code, line = call("translate", "--model", "mixed", stdin=b"the dog\n").refusal()
    assert (code, line) == (65, "mixed/spm.model: 30 subwords, but the weights are for 40")


def test_models_translate_together_in_one_direction_where_they_share_their_vocabulary(translate: Call, model: Path, tmp_path: Path) -> None:
    alone = translate("--engine", "torch", stdin=b"the dog\na cat\n")
    assert translate("--model", model, stdin=b"the dog\na cat\n") == (0, alone.out, "")
    write_drawn(tmp_path / "other", vocab_size=30)
    shutil.copytree(model, tmp_path / "back")
    write_json(tmp_path / "back/config.json", read_json(model / "config.json") | {"source": "de", "target": "en"})
    for other, rule in (("other", "share their vocabulary"), ("back", "have one direction")):
        code, line = translate("--model", other, stdin=b"the dog\n").refusal()
        assert (code, line.split(". ")[-1]) == (78, f"Models that translate together {rule}.")


OWN = {"beam": 3, "penalty": "power", "alpha": 1.5, "max_extra": 3, "precision": "float64", "engine": "torch", "shortlist": False}


def scored(model: Path, **changes: object) -> Path:
    """A copy of the model with a search of its own, `OWN` with changes."""
    directory = Path(shutil.copytree(model, "scored", dirs_exist_ok=True))
    search = Decode.model_validate({**OWN, "batch_tokens": 500, **changes})
    write_json(directory / "config.json", read_json(directory / "config.json") | {"decode": search.model_dump()})
    return directory


def test_the_search_of_a_models_score_is_the_default_and_options_win(translate: Call, call: Call, model: Path) -> None:
    stdin, output = b"the dog\na cat\n", ("--nbest", "--verbose")
    options = [word for name, value in OWN.items() if name != "shortlist" for word in (f"--{name.replace('_', '-')}", value)]
    asked = translate(*output, *options, stdin=stdin)
    assert asked.err.startswith("engine torch, float64, on ")
    by_default = partial(call, "translate", "--model", scored(model), *output)
    assert by_default(stdin=stdin) == asked
    assert by_default("--alpha", "0.5", stdin=stdin) == translate(*output, *options, "--alpha", "0.5", stdin=stdin) != asked


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ((), "ctranslate2, int8"),
        (("--nbest",), "ctranslate2, int8"),
        (("--prefixes", "prefixes"), "torch, float32"),
        (("--engine", "torch"), "torch, float32"),
        (("--precision", "float64"), "torch, float64"),
        (("--precision", "float32"), "ctranslate2, float32"),
        (("--engine", "auto"), "ctranslate2, int8"),
        (("--precision", "int8"), "ctranslate2, int8"),
    ],
)
def test_options_go_before_the_engine_of_a_model(options: tuple[str, ...], engine: str, call: Call, model: Path, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_bytes(b"der\n")
    done = call("translate", "--model", scored(model, engine="ctranslate2", precision="int8"), "--verbose", *options, stdin=b"the dog\n")
    assert (done.code, done.err.split(", on ")[0]) == (0, f"engine {engine}")


def test_translations_begin_with_their_prefixes(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_bytes(b"der Hund\n\n")
    first, second = translate("--prefixes", "prefixes", stdin=b"a cat\na cat\n").out.split("\n")[:2]
    assert first.startswith("der Hund")
    assert second == translate(stdin=b"a cat\n").out.rstrip("\n")
    assert "<stdin>: 1 lines, but prefixes has 2" in translate("--prefixes", "prefixes", stdin=b"a\n").err
    (tmp_path / "odd").write_text("der 犬\n", encoding="utf-8")
    assert "--prefixes: der 犬: the model has no 犬. Leave them out." in translate("--prefixes", "odd", stdin=b"a\n").err
    listed = ("--max-input", "20", "--prefixes", "prefixes", "--nbest", "--beam", "2")
    done = translate(*listed, stdin=b"a cat sees the dog. the dog sees a cat.\na cat\n")  # The first line in parts.
    rows = [line.split("\t") for line in done.out.split("\n")[:-1]]
    assert [(row[0], row[3].startswith("der Hund")) for row in rows[:2]] == [("1", True)] * 2
    assert [row[0] for row in rows[2:]] == ["2", "2"]


def test_a_file_that_is_a_standard_stream_keeps_what_is_in_it(model: Path, tmp_path: Path) -> None:
    lines, command = tmp_path / "lines", [COMMAND, "translate", "--model", model, "--out"]
    lines.write_bytes(b"a cat\n")
    with lines.open("rb") as stream:
        assert subprocess.run([*command, "lines"], cwd=tmp_path, stdin=stream, check=False).returncode == 78
    assert lines.read_bytes() == b"a cat\n"
    with lines.open("ab") as stream:
        subprocess.run([*command, "/dev/stdout"], input=b"a cat\n", stdout=stream, check=True)
    assert re.fullmatch(rb"a cat\n.+\n", lines.read_bytes())
    with NamedTemporaryFile(dir="/dev/shm") as named:
        for _ in range(2):
            subprocess.run([*command, named.name], input=b"a cat\n", check=True)
        assert Path(named.name).read_bytes().count(b"\n") == 1


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
        assert reader.communicate(timeout=300)[0] == expected
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.usefixtures("one_thread")
def test_the_engine_and_an_automatic_precision_are_named(translate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = partial(translate, "--device", "cpu", "--verbose", stdin=b"the dog\n")
    assert asked("--engine", "ctranslate2", "--threads", "3").err == "engine ctranslate2, float32, on cpu, 3 CPU threads: as asked\n"
    for fast, name in ((True, "bf16"), (False, "float32")):
        monkeypatch.setattr("transformer_core.models.precision.has_fast_bf16", lambda _, fast=fast: fast)
        assert asked("--precision", "auto").err.startswith(f"engine torch, {name}, on ")


def test_gpus_that_cuda_cannot_use_are_none(translate: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver lists them, and CUDA does not start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert translate("--device", "cuda", stdin=b"the dog\n").refusal() == (78, "--device: cuda requested, 0 GPUs here")


def test_an_export_says_what_was_made_and_where_but_not_over_a_model_of_ours(model: Path, call: Call, tmp_path: Path) -> None:
    done = call("export", "--format", "ctranslate2", "--model", model, "--out", "ct2")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"ct2: a model for CTranslate2, \d+ kB\n", done.out)
    assert (tmp_path / "ct2/spm.model").read_bytes() == (model / "spm.model").read_bytes()
    remedy = "Name the folder of the model that was exported, for example models/averaged."
    line = f"ct2: an export for CTranslate2, not a model directory. {remedy}"
    for engine in ("auto", "torch", "ctranslate2"):
        assert call("translate", "--model", "ct2", "--engine", engine, stdin=b"the dog\n").refusal() == (65, line)


def test_a_translation_has_the_words_of_the_glossary(translate: Call, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("dog\tKatze\n", encoding="utf-8")
    done = translate("--verbose", "--glossary", "terms.tsv", stdin=b"the dog sees\nthe house\n")
    assert "CTranslate2 is not used with a glossary" in done.err
    first, second, _ = done.out.split("\n")
    assert "Katze" in first.split()
    assert second == translate("--engine", "torch", stdin=b"the house\n").out[:-1]
