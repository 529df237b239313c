import re
import shutil
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from unicodedata import normalize

import pytest

from flows.process.paths import METRICS, SCORES
from flows.process.runner import record_run
from flows.record.run import RunRecord
from flows.stages.evaluate import attention_of, gather, run
from tests.embedding_metric import write_checkpoint
from tests.evaluation.test_report import a_report
from tests.flows.stages import changed, set_params, stage_here
from tests.flows.test_train_stage import recorded
from tests.models.on_disk import TEXT, VOCAB, write_model
from tests.refusals import refused
from transformer_core import recipes
from transformer_core.baselines.recurrent import Recurrent
from transformer_core.baselines.sizes import RecurrentSize
from transformer_core.corpus.text import write_lines, write_pairs
from transformer_core.evaluation.metrics import SCORING
from transformer_core.evaluation.report import Attended
from transformer_core.files import read_json, write_json
from transformer_core.files import write_text as write
from transformer_core.models.directory import Training
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SOURCE = ["A man rides a bike through the town.", "Two dogs play in the snow today.", "The woman has not read the book."]
TARGET = ["Ein Mann fährt mit dem Fahrrad durch die Stadt.", "Zwei Hunde spielen heute im Schnee.", "Die Frau hat das Buch nicht gelesen."]
SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=4, d_v=4, dropout=0.1)
INTERVALS = {"bleu_low": 19.92, "bleu_high": 100.0, "chrf_low": 46.83, "chrf_high": 100.0, "ter_low": 0.0, "ter_high": 51.29}
HYPOTHESES = ["Ein Mann fährt mit dem Fahrrad durch die Stadt.", "Zwei Hunde spielen heute im Eis.", "Die Frau liest das Buch."]
PARAMS = changed(recipes.load("tatoeba"), "download", corpus="tiny")


def lay_out(root: Path) -> None:
    """Write the outputs of the stages before, three sentences a split."""
    report = a_report()
    metrics = {"updates": 40, "parameters": 12_345, "valid_perplexity": 7.3891, "minutes": 2.5, "tokens_per_second": 50}
    write_json(root / "data/raw/manifest.json", {**report.manifest, "corpus": "tiny"})
    write_json(root / "data/clean/report.json", report.cleaning)
    write_json(root / "results/training/metrics.json", metrics)
    write_json(root / "results/decode/statistics.json", report.decoding)
    write_lines(root / "data/clean/train.de", TARGET)
    for name in ("valid", "test"):
        write_pairs(root / f"data/raw/{name}.en", root / f"data/raw/{name}.de", zip(SOURCE, TARGET, strict=True))
        write_lines(root / f"results/decode/{name}.hyp", HYPOTHESES)
    updates = "update,loss,perplexity,learning_rate,gradient_norm,tokens_per_second\n20,5,90,1e-4,1,50\n40,4,30,2e-4,1,60\n"
    write(root / "results/training/updates.csv", updates)
    write(root / "results/training/validation.csv", "update,nll,perplexity,accuracy,score,seconds\n40,3.5,33,0.4,12.5,2\n")
    write(root / "params.yaml", recipes.read("tatoeba").replace("corpus: tatoeba", "corpus: tiny"))
    put_model(Transformer(SIZE, VOCAB), root)


def put_model(model: Transformer | Recurrent, root: Path) -> None:
    write_model(model, root / "models/averaged", training=Training(fingerprint="f00d", updates=40, target_tokens=900, seconds=2.0))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scores_are_flat_rounded_and_of_the_test_split(here: Path) -> None:
    write_lines(here / "results/decode/valid.hyp", TARGET)
    run(PARAMS)
    metrics = read_json(SCORES)
    signature, paper_signature = metrics.pop("signature"), metrics.pop("paper_bleu_signature")
    # What `sacrebleu ref -i hyp -m bleu chrf ter -w 2 --confidence` prints for these three lines (23 tokens for 25: penalty
    # exp(1 - 25 / 23)); the intervals are 64.90 +- 44.98, 75.78 +- 28.96 and 22.72 +- 28.57, within the scales. Moses parts these lines
    # into the same tokens.
    expected = {
        **INTERVALS, "bleu": 66.97, "chrf": 76.39, "ter": 22.73, "paper_bleu": 66.97,
        "corpus": "tiny", "lines": 3, "references_sha256": sha256(Path("data/raw/test.de").read_bytes()).hexdigest(),
        "brevity_penalty": 0.917, "length_ratio": 0.92, "copied": 0.0, "empty": 0.0, "over_long": 0.0,
        "precisions": [91.3, 75.0, 64.71, 64.29], "hypothesis_tokens": 23, "reference_tokens": 25,
        "commonest": 33.333, "distinct": 100.0, "repeating": 0.0,
        "reference_commonest": 33.333, "reference_distinct": 100.0, "reference_repeating": 0.0,
    }  # fmt: skip
    assert metrics.items() >= expected.items()
    declared = {key for score in (*SCORING.scores, *SCORING.shares) for key in score.keys}
    assert metrics.keys() == expected.keys() | declared | {"valid"}
    perfect = {key: 0.0 if score.lower_is_better else 100.0 for score in SCORING.scores for key in score.keys}
    assert metrics["valid"] == perfect | {"paper_bleu": 100.0}
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert paper_signature.startswith("multi-bleu|nrefs:1|case:mixed|tok:moses-de|compounds-split:yes|smooth:none|sacremoses:")


def test_the_gain_over_the_model_that_the_training_started_from_is_in_table_scores_and_report(here: Path) -> None:
    write_lines(here / "results/decode/start/test.hyp", ["Ein Mann.", "Zwei Hunde spielen heute im Eis.", "Die Frau liest das Buch."])
    text = (here / "params.yaml").read_text(encoding="utf-8").replace("init_from:\n", "init_from: first\n")  # Of bpe and train.
    write(here / "params.yaml", text)
    done = stage_here("evaluate", code=0)
    assert done.stderr == ""
    gain = read_json(SCORES)["gains"]["test"]
    assert gain["low"] < gain["gain"] == round(66.97 - gain["before"], 2) < gain["high"]
    shown = next(" ".join(line.split()) for line in done.stdout.split("\n") if "+" in line)
    assert shown == "test {before:.2f} {gain:+.2f} {low:+.2f} to {high:+.2f} {p_value:.4f}".format_map(gain)
    assert f"{gain['gain']:+.2f}</td>" in (here / "results/report.html").read_text(encoding="utf-8")


def test_further_test_sets_are_scored_beside_the_main_one(here: Path) -> None:
    shutil.copyfile("data/raw/test.en", "data/raw/test_more.en")
    write_lines(here / "data/raw/test_more.de", HYPOTHESES)
    write_lines(here / "results/decode/test_more.hyp", HYPOTHESES)
    for name, key in (("data/raw/manifest.json", "splits"), ("results/decode/statistics.json", None)):
        document = read_json(here / name)
        splits = document[key] if key else document
        splits["test_more"] = splits["test"]
        write_json(here / name, document)

    done = stage_here("evaluate", code=0)
    assert done.stderr == ""
    table = done.stdout.split("\n")
    assert [line.split()[:2] for line in table[1:4]] == [["valid", "66.97"], ["test", "66.97"], ["test_more", "100.00"]]
    assert table[4].endswith(", 3 lines of test, 3 lines of test_more")
    assert "66.97 on test, 100.00 on test_more, multi-bleu" in table[5]
    assert table[-2:] == ["BLEU 66.97 on the test set of tiny: results/report.html", ""]
    assert (here / "results/by_length.csv").read_text(encoding="utf-8") == "source_words,sentences,score\n6-10,3,66.97\n"
    scores = read_json(SCORES)
    assert scores["bleu"] == 66.97
    assert scores["tests"]["test_more"].items() >= {"bleu": 100.0, "ter": 0.0, "paper_bleu": 100.0, "lines": 3}.items()
    others = {"valid": {"bleu": 66.97}, "test_more": {"bleu": 100.0}, "last_checkpoint": {"perplexity": 7.39}, "minutes": 2.5}
    assert read_json(METRICS) == {score.key: scores[score.key] for score in SCORING.scores} | others
    html = (here / "results/report.html").read_text(encoding="utf-8")
    assert '<th scope="row">test_more</th>' in html
    assert re.search(r'<th scope="row">evaluate</th>\s*<td class="number">\d+\.\d s</td>', html)
    (record,) = recorded()
    assert record.metrics["test_more/bleu"].value == 100.0
    assert "test_more.hyp" in record.artifacts


def test_a_command_adds_comet_to_scores_metrics_report_and_record(here: Path) -> None:
    command = write_checkpoint(here / "metric.pt")
    set_params(evaluate={"comet": command})
    write_lines(here / "results/decode/valid.hyp", TARGET)
    done = stage_here("evaluate", code=0)
    scores = read_json(SCORES)
    # The metric of a translation that equals its reference is 1; one of the three of test does.
    assert scores["valid"]["comet"] == 100
    assert 100 / 3 < scores["comet_low"] + 100 < scores["comet"] + 100 < 200
    assert scores["comet_signature"] == command
    assert read_json(METRICS)["comet"] == scores["comet"]
    assert f"COMET: 100.00 on valid, {scores['comet']:.2f} on test, {command}" in done.stdout.replace("\n", " ")
    html = (here / "results/report.html").read_text(encoding="utf-8")
    assert f"{scores['comet']:.2f} on test" in html[html.index("COMET, by the command in its signature, is") :]
    (record,) = recorded()
    assert record.metrics["comet"].value == scores["comet"]
    assert record.metrics["valid/comet"].value == 100


def test_the_test_set_decides_on_the_tokens_of_all_sets(here: Path) -> None:
    """Valid is too short to be seen as text without spaces; 13a would take its sentences for words."""
    write_lines(here / "data/raw/valid.de", ["早上好。"] * 3)
    write_lines(here / "results/decode/valid.hyp", ["晚上好。"] * 3)
    for file in ("data/raw/test.de", "results/decode/test.hyp"):
        write_lines(here / file, ["我们明天去公园散步。", "他的弟弟在一家很大的医院工作。", "请把窗户打开,房间里太热了。"])
    run(PARAMS)
    scores = read_json(SCORES)
    assert "|tok:zh|" in scores["signature"]
    assert "paper_bleu" not in scores.keys() | scores["valid"].keys()
    assert scores["valid"]["bleu"] == 45.18


@pytest.mark.usefixtures("here")
def test_the_record_is_that_of_a_child_run_of_the_training() -> None:
    run(PARAMS)
    (record,) = recorded()
    assert (record.parent, record.status) == ("f00d", "FINISHED")
    assert record.tags.items() >= {"kind": "evaluation", "corpus": "tiny"}.items()
    assert record.tags["mlflow.runName"] == "66.97 BLEU, beam 4, alpha 0.6"
    assert record.parameters.items() >= {"average.count": "5", "decode.beam": "4", "decode.alpha": "0.6", "lines": "3"}.items()
    assert not {"decode.made", "decode.machine"} & record.parameters.keys()
    assert record.parameters["references_sha256"] == sha256(Path("data/raw/test.de").read_bytes()).hexdigest()
    written = read_json(SCORES)
    scores = {key: written[key] for score in (*SCORING.scores, *SCORING.shares) for key in score.keys} | {"paper_bleu": 66.97}
    assert {name: score.value for name, score in record.metrics.items() if score.step == 0} == scores
    pages = ["report.html", "sentences.html", "test.hyp", "valid.hyp", "by_length.csv", "manifest.json"]
    artifacts = [*pages, "sources/test.en", "references/test.de"]
    assert list(record.artifacts) == artifacts
    assert all((record.folder / "artifacts" / name).is_file() for name in artifacts)


@pytest.mark.usefixtures("here")
def test_another_search_training_or_output_is_another_run_but_not_another_day_or_machine() -> None:
    run(PARAMS)
    statistics, outputs, model = map(Path, ("results/decode/statistics.json", "results/decode/test.hyp", "models/averaged/config.json"))
    for path, old, new, runs in (
        (statistics, "2026-01-31", "2026-02-01", 1),
        (statistics, "AMD EPYC", "A CPU", 1),
        (statistics, '"beam": 4', '"beam": 5', 2),
        (outputs, "liest", "las", 3),
        (model, '"run": ""', '"run": "c0ffee"', 4),
    ):
        text = path.read_text(encoding="utf-8")
        assert old in text
        write(path, text.replace(old, new))
        run(PARAMS)
        assert len(recorded()) == runs
    assert [record.parent for record in recorded()] == ["f00d", "f00d", "f00d", "c0ffee"]


def test_invalid_inputs_are_named_and_nothing_is_written(here: Path) -> None:
    faults: list[tuple[str, bytes | None, str]] = [
        ("models/averaged/config.json", None, "models/averaged/config.json: no such file. Make it with: dvc repro average"),
        ("results/decode/test.hyp", None, "results/decode/test.hyp: no such file"),
        ("results/decode/test.hyp", b"eins\nzw\xffei\ndrei\n", "results/decode/test.hyp:2: not valid UTF-8 (byte 0xff at column 3)"),
        ("models/averaged/model.safetensors", b"damaged", "models/averaged/model.safetensors: damaged"),
    ]
    for name in ("data/raw/test.de", "data/raw/test.en"):
        longer = (here / name).read_bytes() + b"one too many\n"
        faults.append((name, longer, f"{name}: 4 lines, but results/decode/test.hyp has 3"))
    for split in ("test", "valid"):
        tokenised = "".join(line.replace(".", " .") + "\n" for line in TARGET)
        fault = f"data/raw/{split}.de:1: looks tokenised (100% of the lines do)"
        faults.append((f"data/raw/{split}.de", tokenised.encode(), fault))
    for name, content, fault in faults:
        right = (here / name).read_bytes()
        (here / name).unlink() if content is None else (here / name).write_bytes(content)
        with refused(65) as error:
            run(PARAMS)
        assert str(error.value).startswith(fault)
        assert not list(here.glob("results/*.*")), name
        (here / name).write_bytes(right)
    assert error.value.remedy.endswith("or set evaluate.allow_tokenised: true.")
    with refused(78, "data/raw: holds tiny from en to de, but section download names other from en to de"):
        run(changed(PARAMS, "download", corpus="other"))
    assert not (here / SCORES).exists()
    write_lines(here / "data/raw/test.de", (line.replace(".", " .") for line in TARGET))
    run(changed(PARAMS, "evaluate", allow_tokenised=True))
    assert read_json(SCORES)["bleu"] == 66.97  # 13a parts the full stop anyway.


def test_the_report_is_given_what_the_stages_before_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few subwords of the tests' vocabulary; the second sentence is the first of median length.
    write_lines(here / "data/raw/test.en", ["a cat", "the dog sees a cat", "a cat sees the house"])
    write_lines(here / "results/decode/test.hyp", [TEXT[3], TEXT[2], TEXT[3]])
    record_run("clean", PARAMS, 12.34)
    record_run("decode", changed(PARAMS, "decode", beam=9), 56.78)  # With other settings.
    lock = "stages:\n  clean:\n    outs: [{path: data/clean, md5: 1234.dir}]\n  publish:\n    outs: [{path: p, md5: 5678}]\n"
    write(here / "dvc.lock", lock)
    RunRecord(id="f00d", tags={"devices": "8 x cuda", "mlflow.runName": "a name"}).write()
    assert gather(PARAMS, SCORING).lineage.outputs == {}  # DVC does not run the stage.
    monkeypatch.setenv("DVC_STAGE", "evaluate")
    report = gather(changed(PARAMS, "evaluate", examples=2), SCORING)
    assert isinstance(report.attention, Attended)
    assert len(report.examples) == 2
    assert [report.seconds[stage] for stage in ("clean", "decode", "train")] == [12.3, None, 2.0]  # The model says so of the training.
    assert (report.settings["train"]["warmup"], "machine" in report.settings) == (PARAMS.train.warmup, False)
    assert (report.lineage.report["torch"], report.lineage.report["sacrebleu"]) == (version("torch"), version("sacrebleu"))
    assert (report.lineage.training, report.lineage.outputs) == ({"devices": "8 x cuda"}, {"data/clean": "1234.dir"})
    assert (report.attention.index, "".join(report.attention.maps.source)) == (1, "▁the▁dog▁sees▁a▁cat</s>")
    shapes = {kind: weights.shape[:2] for kind, weights in report.attention.maps.weights.items()}
    assert shapes == dict.fromkeys(("encoder", "decoder", "cross"), (2, 4))
    assert ([row["loss"] for row in report.updates], [row["score"] for row in report.validation]) == ([5, 4], [12.5])


def test_a_report_without_attention_says_why(here: Path) -> None:
    assert str(attention_of(SOURCE, HYPOTHESES)).startswith("No sentence of the test set is short enough for a figure")
    put_model(Recurrent(RecurrentSize(layers=1, d_model=16, dropout=0.1, attention="none"), VOCAB), here)
    assert str(attention_of(["a cat"], [TEXT[3]])).startswith("This model keeps no attention weights")


def test_all_sentences_are_in_a_page_of_their_own_and_only_the_reference_itself_is_exactly_right(here: Path) -> None:
    """chrF2 ignores white space, and is 0 of two empty lines. The references have Windows' line ends and two spaces."""
    write_lines(here / "data/raw/test.de", [f"{line}\r" for line in (TARGET[0], "", TARGET[2].replace(" ", "  ", 1))])
    write_lines(here / "results/decode/test.hyp", [TARGET[0].replace(" ", "", 1), "", TARGET[2]])
    run(PARAMS)
    assert "Exactly right: 2</strong> of 3 sentences" in (here / "results/report.html").read_text(encoding="utf-8")
    sentences = (here / "results/sentences.html").read_text(encoding="utf-8")
    assert re.findall(r'<tr(.*?)><td class="number">\d</td>', sentences) == ["", ' class="exact"', ' class="exact"']
    assert sentences.count("<tr") == 1 + 3


def test_references_are_normalised_and_a_line_too_long_for_ter_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(PARAMS)
    assert "normalised" not in capsys.readouterr().err
    write_lines(here / "data/raw/test.de", (normalize("NFD", line) for line in ["ü " * 201, *TARGET[1:]]))
    run(PARAMS)
    scores, (out, err) = read_json(SCORES), capsys.readouterr()
    assert scores["signature"].endswith("|ref:normalised")
    assert "data/raw/test.de: 1 of 3 lines have characters that no translation has; they are normalised to be scored" in err.split("\n")
    assert ("ter" in scores, "ter" in scores["valid"]) == (False, True)
    assert re.search(r"^test .* -$", out, re.MULTILINE)
    assert "no TER: a line has more than 200 words" in (here / "results/report.html").read_text(encoding="utf-8")


DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"


def test_trees_are_scored_by_their_brackets_and_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One output is right, one has a wrong bracket, one was cut off.

    Gold has 3 brackets a sentence; the outputs have 3, 3 and, once closed, 2, of which 3, 1 and 1 match (S; the NP is too long).
    """
    for name in ("valid", "test"):
        write_pairs(here / f"data/raw/{name}.en", here / f"data/raw/{name}.tree", [("The dog barks .", DOG)] * 3)
        outputs = ["(S (NP XX XX )NP (VP XX )VP XX )S", "(S (NP XX )NP (VP XX XX )VP XX )S", "(S (NP XX XX"]
        write_lines(here / f"results/decode/{name}.hyp", outputs)
    manifest = (here / "data/raw/manifest.json").read_text(encoding="utf-8")
    write(here / "data/raw/manifest.json", manifest.replace('"de"', '"tree"'))
    closing = run(changed(recipes.load("icon-parsing"), "download", corpus="tiny", source="en"))
    metrics = read_json(SCORES)
    assert (metrics["precision"], metrics["recall"], metrics["f1"]) == (62.5, 55.56, 58.82)
    assert (metrics["exact_match"], metrics["malformed"], metrics["lines"]) == (33.33, 33.33, 3)
    assert metrics["valid"]["f1"] == 58.82
    assert closing == "F1 58.82 on the test set of tiny: results/report.html"
    assert "33.3% repaired into a tree" in capsys.readouterr().out
    assert Path("results/by_length.csv").read_text() == "source_words,sentences,score\n1-5,3,58.82\n"
    (record,) = recorded()
    assert record.tags["mlflow.runName"].startswith("58.82 F1, beam 4")
    html = Path("results/report.html").read_text(encoding="utf-8")
    # First the sentence whose NP was cut off and took in the verb, then the one whose noun went to the VP.
    assert [tree.count("(VP") for tree in re.findall(r"<dt>The model.*?</dt><dd>(.*?)</dd>", html)] == [0, 1]
    sentences = Path("results/sentences.html").read_text(encoding="utf-8")
    assert (sentences.count('class="exact"'), "<mark>" in sentences) == (1, False)
