"""The bootstrap is sacreBLEU's own: what its command prints is what comes out here."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from tests.clone import DATA
from transformer_core.evaluation.bleu import as_outputs
from transformer_core.evaluation.metrics import SCORING
from transformer_core.evaluation.scoring import Comparison, read_aligned
from transformer_core.evaluation.significance import interval

SYSTEMS, REFERENCE = DATA / "peer/wmt17_ende_systems", "reference.detok.de"
BEST, NEXT, TWIN, WORST = (
    f"newstest2017.{name}.en-de.detok.de" for name in ("uedin-nmt.4722", "LMU-nmt-single.4893", "LIUM-NMT.4900", "online-F.0")
)
REFERENCES = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen.", "Heute regnet es in Berlin."]
GOOD = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen.", "Es regnet heute in Berlin."]
BAD = ["Ein Mann fährt Rad.", "Zwei Katzen schlafen im Schnee.", "Die Frau liest heute ein Buch.", "Es regnet."]

wmt17 = pytest.mark.skipif(not SYSTEMS.exists(), reason="the WMT17 outputs are not beside the repository (../shared/data/peer)")


def sacrebleu(folder: Path, *arguments: str) -> str:
    """What the command prints in a folder."""
    command = [sys.executable, "-m", "sacrebleu", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "SACREBLEU_SEED"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def sacrebleu_scores(hypotheses: Sequence[str], references: Sequence[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """The command's scores of a system, of two metrics or more."""
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(sacrebleu(folder, "ref", "-i", "hyp", *options, "-f", "json"))
    return found


def by_bleu(baseline: list[str], candidate: list[str], references: list[str]) -> Comparison:
    return next(SCORING.comparisons(baseline, candidate, references))


def ends(hypotheses: list[str], references: list[str]) -> tuple[float, float]:
    """The ends of BLEU's interval."""
    _, low, high = interval(BLEU(force=True), hypotheses, references)
    return low, high


def systems(*names: str) -> list[list[str]]:
    return read_aligned(*(SYSTEMS / name for name in (*names, REFERENCE)))


@wmt17
def test_p_values_are_those_of_the_sacrebleu_command() -> None:
    printed = json.loads(
        sacrebleu(SYSTEMS, REFERENCE, "-i", BEST, NEXT, TWIN, WORST, "-m", "bleu", "-w", "10", "--paired-bs", "-f", "json")
    )
    best, *others, references = systems(BEST, NEXT, TWIN, WORST)
    ours = [by_bleu(best, other, references) for other in others]
    theirs = [row["BLEU"] for row in printed]
    assert [one.baseline for one in ours] == [theirs[0]["score"]] * 3
    assert [(one.candidate, one.p_value) for one in ours] == [(row["score"], row["p_value"]) for row in theirs[1:]]


@wmt17
@pytest.mark.slow  # 40 s, most of it TER, here and in the command
def test_p_values_of_all_scores_are_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    *outputs, references = systems(NEXT, TWIN)
    (tmp_path / "ref").write_text("\n".join(as_outputs(references)[0]) + "\n", encoding="utf-8")  # Three lines have soft hyphens.
    # A table: of TER sacreBLEU 2.6.0 fails to write JSON.
    command = (str(tmp_path / "ref"), "-i", NEXT, TWIN, "-m", "bleu", "chrf", "ter", "-w", "10", "--paired-bs", "-f", "text")
    printed = sacrebleu(SYSTEMS, *command).split("\n")
    (scores,) = [re.findall(r"(\S+) \(\S+ ± \S+\)", line) for line in printed if TWIN in line]
    (p_values,) = [found for line in printed if (found := re.findall(r"p = (\S+)\)", line))]
    compared = list(SCORING.comparisons(*outputs, references))
    assert [f"{one.candidate:.10f}" for one in compared] == scores
    assert [f"{one.p_value:.4f}" for one in compared] == p_values
    assert [one.significant for one in compared] == [False, False, True]


def test_an_interval_stays_within_the_scale_which_ends_at_a_hundred_but_for_ter() -> None:
    assert interval(TER(), ["a b c d"] * 4, ["x"] * 4) == pytest.approx((400, 400, 400))
    assert ends(REFERENCES, REFERENCES) == pytest.approx((100, 100))
    assert max(ends(REFERENCES, REFERENCES)) <= 100


def test_resamples_of_many_lines_need_little_memory() -> None:
    hypotheses, references = GOOD * 2_500, REFERENCES * 2_500
    tracemalloc.start()
    by_bleu(BAD * 2_500, hypotheses, references)
    ends(hypotheses, references)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The n-grams and counts of a line take some 2,650 bytes in Python; the indices of all resamples alone 1,000 x 8.
    assert most < 10_000 * 5_000


def test_the_three_scores_come_in_order_with_signatures_that_hold_the_seed() -> None:
    compared = list(SCORING.comparisons(BAD, GOOD, REFERENCES))
    assert [one.score.name for one in compared] == ["BLEU", "chrF2", "TER"]
    assert [one.difference > 0 for one in compared] == [True, True, False]
    for one in compared:
        assert one.difference == one.candidate - one.baseline
        assert one.signature.startswith("nrefs:1|bs:1000|seed:12345|")
    assert compared[0] == by_bleu(BAD, GOOD, REFERENCES)


@pytest.mark.parametrize("hypotheses", [GOOD, [""] * 4], ids=["text", "empty"])
def test_a_system_does_not_differ_from_itself(hypotheses: list[str]) -> None:
    for one in SCORING.comparisons(hypotheses, hypotheses, REFERENCES):
        assert (one.difference, one.p_value, one.significant) == (0, 1, False)


def test_one_sentence_proves_nothing() -> None:
    for one in SCORING.comparisons(BAD[1:2], GOOD[1:2], REFERENCES[1:2]):
        assert (one.p_value, one.significant) == (1, False)
    assert ends(GOOD[:1], REFERENCES[:1]) == pytest.approx((100, 100))


def test_empty_translations_are_worse_than_any_and_certainly_so() -> None:
    compared = by_bleu(GOOD * 10, [""] * 40, REFERENCES * 10)
    assert (compared.candidate, compared.significant) == (0, True)
    assert ends([""] * 4, REFERENCES) == (0, 0)
