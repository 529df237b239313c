import pytest

from flows.process.paths import DECODED, MANIFEST, RAW, SCORES
from flows.scores import main
from tests.flows.publishing import FIGURES as PUBLISHED
from tests.flows.publishing import MANIFEST as ENTRY
from tests.flows.publishing import SCORES_OF_SET
from transformer_core.errors import ExitCode
from transformer_core.files import write_json, write_text

pytestmark = pytest.mark.usefixtures("empty_directory")

FIGURES = {
    **PUBLISHED, "bleu": 38.4, "bleu_low": 36.91, "bleu_high": 40.02, "chrf": 64.21, "ter": 42.0, "paper_bleu": 39.5,
    "paper_bleu_signature": "multi-bleu|nrefs:1|case:mixed|tok:moses-de",
    "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "corpus": "multi30k", "lines": 1000, "references_sha256": "0" * 64, "copied": 0.2, "empty": 0.0, "over_long": 1.3,
    "valid": {**SCORES_OF_SET, "bleu": 39.0, "bleu_low": 37.5, "bleu_high": 40.5, "chrf": 65.0, "ter": 41.5, "paper_bleu": 40.1},
}  # fmt: skip


def test_scores_of_both_splits_are_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(MANIFEST, ENTRY)
    for file, word in ((RAW / "test.en", "line"), (RAW / "test.de", "Zeile"), (DECODED / "test.hyp", "Reihe")):
        write_text(file, "".join(f"{word} {number}\n" for number in range(1, 5)))
    write_json(SCORES, FIGURES)
    assert main([]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == ["multi30k", "BLEU", "95%", "interval", "chrF2", "TER"]
    assert lines[1].split() == ["valid", "39.00", "37.50-40.50", "65.00", "41.50"]
    assert lines[2].split() == ["test", "38.40", "36.91-40.02", "64.21", "42.00"]
    assert lines[3] == "BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0, 1,000 lines of test"
    assert lines[4] == "The paper's BLEU: 40.10 on valid, 39.50 on test, multi-bleu|nrefs:1|case:mixed|tok:moses-de"
    assert lines[5].startswith("Outputs for test: 0.2% copied from the source, 0.0% empty, 1.3% over-long")
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[7:11] == ["", "source       line 1", "translation  Reihe 1", "reference    Zeile 1"]
    assert len(lines) == 7 + 3 * 4 + 1


def test_no_scores_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.BAD_DATA
    assert capsys.readouterr() == ("", "results/scores.json: no such file. Make it with: dvc repro evaluate\n")
