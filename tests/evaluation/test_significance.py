"""Systems compared: intervals are those of sacreBLEU's command, p-values those of its randomisation test, but for the random numbers."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tests.clone import DATA
from transformer_core.evaluation.bleu import as_outputs
from transformer_core.evaluation.comparison import comparison_text, side_by_side
from transformer_core.evaluation.metrics import SCORING
from transformer_core.evaluation.scoring import Comparison, read_aligned
from transformer_core.evaluation.significance import TRIALS, compared, interval, p_value, scores_of, statistics_of

SYSTEMS, REFERENCE = DATA / "peer/wmt17_ende_systems", "reference.detok.de"
NEXT, TWIN = (f"newstest2017.{name}.en-de.detok.de" for name in ("LMU-nmt-single.4893", "LIUM-NMT.4900"))
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
@pytest.mark.slow  # 40 s, most of it TER, here and in the command
def test_scores_and_p_values_are_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    *outputs, references = systems(NEXT, TWIN)
    (tmp_path / "ref").write_text("\n".join(as_outputs(references)[0]) + "\n", encoding="utf-8")  # Three lines have soft hyphens.
    # A table: of TER sacreBLEU 2.6.0 fails to write JSON.
    command = (str(tmp_path / "ref"), "-i", NEXT, TWIN, "-m", "bleu", "chrf", "ter", "-w", "10", "--paired-ar", "-f", "text")
    printed = sacrebleu(SYSTEMS, *command).split("\n")
    (scores,) = [re.findall(r"\d+\.\d{10}", line) for line in printed if TWIN in line]
    (p_values,) = [list(map(float, found)) for line in printed if (found := re.findall(r"p = (\d\S*?)\)", line))]
    compared = list(SCORING.comparisons(*outputs, references))
    assert [f"{one.candidate:.10f}" for one in compared] == scores
    # Other trials: three standard errors of the difference of two shares of 10,000.
    for one, theirs in zip(compared, p_values, strict=True):
        assert abs(one.p_value - theirs) <= 3 * math.sqrt(2 * theirs * (1 - theirs) / TRIALS) + 1 / TRIALS
    assert [one.significant for one in compared] == [False, False, True]


def test_the_p_value_is_the_share_of_all_ways_to_swap_outputs_that_differ_as_much_or_more() -> None:
    """Two-sided: a difference of the other sign counts, too."""
    references, metric = REFERENCES * 2, BLEU(force=True)
    first, second = [*BAD, *GOOD[:2], *BAD[2:]], [*GOOD[:3], BAD[3], *BAD[:2], *GOOD[2:]]

    def difference(swaps: Sequence[int]) -> float:
        a, b = ([pair[swap ^ side] for pair, swap in zip(zip(first, second, strict=True), swaps, strict=True)] for side in (0, 1))
        return abs(metric.corpus_score(b, [references]).score - metric.corpus_score(a, [references]).score)

    found = difference([0] * len(first))
    all_ways = [difference(swaps) >= found - 1e-9 for swaps in itertools.product((0, 1), repeat=len(first))]
    exact = sum(all_ways) / len(all_ways)
    assert 0.05 < exact < 0.95
    for one in (by_bleu(first, second, references), by_bleu(second, first, references)):
        assert one.p_value == pytest.approx(exact, abs=3 * math.sqrt(exact * (1 - exact) / TRIALS))


@wmt17
@pytest.mark.slow  # 3 minutes
def test_of_systems_that_do_not_differ_one_in_twenty_differs_significantly() -> None:
    """Outputs of two systems that are swapped at random are outputs of systems that differ by chance alone."""
    *outputs, references = (lines[:500] for lines in systems(NEXT, TWIN))
    random = np.random.default_rng(1)
    swaps = random.integers(2, size=(1_000, len(references), 1))
    for metric in (BLEU(force=True), CHRF(), TER()):
        first, second = (statistics_of(metric, lines, references) for lines in outputs)
        pairs = ((np.where(swap, second, first), np.where(swap, first, second)) for swap in swaps)
        found = [p_value(*pair, scores_of(metric), trials=500) < 0.05 for pair in pairs]
        # 0.05 less what 500 trials round off, within three standard errors.
        assert np.mean(found) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 1_000)), metric


def test_the_interval_of_a_difference_is_that_of_the_gains_of_single_lines() -> None:
    """A score that is a mean of lines: its standard error is that of the lines' gains, whatever the lines have in common."""
    random = np.random.default_rng(1)
    common, gains = random.normal(0, 30, 400), random.normal(2, 3, 400)
    first, second = ((common + add)[:, None] for add in (0, gains))
    found = compared(SCORING.scores[0], first, second, lambda sums: sums[:, 0] / 400, "")
    half = 1.96 * gains.std() / 20
    assert (found.low, found.high) == pytest.approx((gains.mean() - half, gains.mean() + half), abs=0.1 * half)


def test_an_interval_stays_within_the_scale_which_ends_at_a_hundred_but_for_ter() -> None:
    assert interval(TER(), ["a b c d"] * 4, ["x"] * 4) == pytest.approx((400, 400, 400))
    assert ends(REFERENCES, REFERENCES) == pytest.approx((100, 100))


def test_resamples_of_many_lines_need_little_memory() -> None:
    hypotheses, references = GOOD * 2_500, REFERENCES * 2_500
    tracemalloc.start()
    by_bleu(BAD * 2_500, hypotheses, references)
    ends(hypotheses, references)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The n-grams and counts of a line take some 2,650 bytes in Python; the swaps of all trials alone 10,000.
    assert most < 10_000 * 5_000


@pytest.mark.parametrize(("first", "second"), [(GOOD, GOOD), ([""] * 4, [""] * 4), (BAD[1:2], GOOD[1:2])])
def test_a_system_does_not_differ_from_itself_and_one_sentence_proves_nothing(first: list[str], second: list[str]) -> None:
    for one in SCORING.comparisons(first, second, REFERENCES if first == second else REFERENCES[1:2]):
        assert (one.difference == 0, one.p_value, one.significant) == (first == second, 1, False)
    assert ends(GOOD[:1], REFERENCES[:1]) == pytest.approx((100, 100))


def test_empty_translations_are_worse_than_any_and_certainly_so() -> None:
    compared = by_bleu(GOOD * 10, [""] * 40, REFERENCES * 10)
    assert (compared.candidate, compared.significant) == (0, True)
    assert ends([""] * 4, REFERENCES) == (0, 0)


def test_the_sentences_that_differ_most_come_first_each_way() -> None:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    lengths = [(10, 10 + gain) for gain in (3, 9, 1, 7, 5, 2, 8, 0)] + [(10 + loss, 10) for loss in (4, 6, 1, 2, 9, 3)]
    a, b = ([alphabet[: pair[side]] for pair in lengths] for side in (0, 1))
    compared = side_by_side(SCORING, a, b, [alphabet] * len(lengths))
    assert [sentence.line for sentence in compared.gains] == [2, 7, 4, 5, 1]
    assert [sentence.line for sentence in compared.losses] == [13, 10, 9, 14, 12]
    assert (compared.gains[0].a, compared.gains[0].b, compared.gains[0].source) == (a[1], b[1], None)
    few = side_by_side(SCORING, a[5:8], b[5:8], [alphabet] * 3)  # The last two are alike.
    assert ([sentence.line for sentence in few.gains], few.losses) == ([2, 1], [])


def test_a_significant_difference_is_marked_and_few_lines_are_warned_of() -> None:
    compared = side_by_side(SCORING, ["ein Hund läuft weg"] * 40, ["nichts"] * 40, ["ein Hund läuft weg"] * 40)
    rows = comparison_text(compared).split("\n")
    assert rows[0].split() == ["40", "lines", "A", "B", "B", "-", "A", "p-value"]
    assert rows[1].split() == ["BLEU", "100.00", "0.00", "-100.00", "0.0001", "*"]
    assert rows[5:7] == ["A lower TER is better.", "With fewer than 100 lines a p-value says little."]
    same = comparison_text(side_by_side(SCORING, ["ein Hund"] * 100, ["ein Hund"] * 100, ["ein Hund"] * 100))
    assert "*" not in same.split("\n")[1]
    assert "fewer than" not in same
    assert same.endswith("\n\nLargest gains of B over A by chrF2: none\n\nLargest gains of A over B by chrF2: none")


def test_control_characters_of_a_text_do_not_reach_the_terminal() -> None:
    text = comparison_text(side_by_side(SCORING, ["ein\r\x1b[31mHund\x9f"], ["eine\u00a0Katze 猫"], ["eine\u00a0Katze 猫"], ["a\tcat\x00"]))
    shown = dict(line.split(maxsplit=1) for line in text.split("\n") if line.startswith("  "))
    assert shown == {"source": r"a\tcat\x00", "reference": "eine\u00a0Katze 猫", "A": r"ein\r\x1b[31mHund\x9f", "B": "eine\u00a0Katze 猫"}
