"""transformer-core score and compare."""

import gzip
import json
import math
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.embedding_metric import write_checkpoint
from transformer_core.cli import main
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.external import Scorer

SOURCES = ["the dog sees a cat", "a cat sees the house", "the house"]
TARGETS = ["der Hund sieht eine Katze", "", "das Haus"]
SOURCE = ["A man rides a bike.", "Two dogs play in the snow.", "The woman has not read the book."]
REFERENCES = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch nicht gelesen."]
A = ["Ein Mann fährt Rad.", "Zwei Katzen schlafen.", "Die Frau hat das Buch gelesen."]
B = ["Ein Mann fährt.", "Zwei Hunde spielen im Schnee.", "Die Frau hat das Buch gelesen."]


@pytest.fixture(autouse=True)
def files(call: Call) -> None:  # noqa: ARG001  # In the folder that it moves to.
    texts = {"a.en": SOURCES, "a.de": TARGETS, "a.hyp": A, "b.hyp": B, "ref.de": REFERENCES, "src.en": SOURCE}
    for name, lines in texts.items():
        write_lines(Path(name), lines)


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.split("\n")[:-1]]


@pytest.mark.parametrize("architecture", ["transformer", "recurrent", "convolutional"])
def test_each_pair_has_its_log_probability_and_tokens_and_all_have_a_perplexity(architecture: str, call: Call) -> None:
    done = call("score", "--model", architecture, "a.en", "a.de")
    assert done.code == 0
    found = [(float(log_probability), int(tokens)) for log_probability, tokens in rows(done.out)]
    assert len(found) == 3
    assert all(log_probability < 0 for log_probability, _ in found)
    assert found[1][1] == 1  # The end token.
    total, tokens = map(sum, zip(*found, strict=True))
    said = re.fullmatch(r"perplexity ([0-9.]+), (\d+) tokens, 3 lines\n", done.err)
    assert said is not None
    assert int(said[2]) == tokens
    assert float(said[1]) == pytest.approx(math.exp(-total / tokens), rel=1e-4)


def test_tokens_are_pieces_with_log_probabilities_that_add_up(call: Call) -> None:
    done = call("score", "--model", "transformer", "--tokens", "a.en", "a.de")
    for (log_probability, tokens, column), target in zip(rows(done.out), TARGETS, strict=True):
        words = column.split(" ")
        pieces, found = words[::2], [float(word) for word in words[1::2]]
        assert "".join(pieces) == "".join(f"▁{word}" for word in target.split()) + "</s>"
        assert len(found) == int(tokens)
        assert sum(found) == pytest.approx(float(log_probability), abs=1e-4 * (len(found) + 1))


def test_lines_without_a_source_are_impossible_or_certain_and_left_out_of_the_perplexity(call: Call) -> None:
    plain = call("score", "--model", "transformer", "a.en", "a.de")
    write_lines(Path("b.en"), [*SOURCES, "", "  "])
    write_lines(Path("b.de"), [*TARGETS, "das Haus", ""])
    done = call("score", "--model", "transformer", "--tokens", "b.en", "b.de")
    assert [row[0] for row in rows(done.out)[3:]] == ["-inf", "0.0000"]
    assert rows(done.out)[4][1:] == ["1", "</s> 0.0000"]
    assert done.err == plain.err.replace("3 lines\n", "3 lines; 2 with an empty source left out\n")


def test_a_piece_with_a_line_feed_stays_in_its_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which only somebody else's vocabulary has."""
    monkeypatch.setattr(Subword, "pieces", ["up\ndown"] * 40)
    assert call("score", "--model", "transformer", "--tokens", "a.en", "a.de").out.count("\n") == 3


def test_the_table_has_scores_differences_and_p_values_and_the_sentences_follow(call: Call) -> None:
    done = call("compare", "a.hyp", "b.hyp", "--ref", "ref.de", "--source", "src.en")
    assert (done.code, done.err) == (0, "")
    heading, table, gains, gained, losses, lost = done.out.rstrip("\n").split("\n\n")
    assert heading == "A is a.hyp\nB is b.hyp"
    rows = table.split("\n")
    assert rows[0].split() == ["3", "lines", "A", "B", "B", "-", "A", "p-value"]
    assert [row.split()[0] for row in rows[1:4]] == ["BLEU", "chrF2", "TER"]
    assert [line.split(": ")[0] for line in rows[-3:]] == ["BLEU", "chrF2", "TER"]
    assert (gains, losses) == ("Largest gains of B over A by chrF2:", "Largest gains of A over B by chrF2:")
    assert gained.split("\n")[0].endswith("in A, 100.0 in B")
    assert [line[13:] for line in gained.split("\n")[1:]] == [SOURCE[1], REFERENCES[1], A[1], B[1]]
    assert [line[13:] for line in lost.split("\n")[1:]] == [SOURCE[0], REFERENCES[0], A[0], B[0]]


def test_a_command_compares_by_comet_of_the_sources_too(call: Call, tmp_path: Path) -> None:
    command = write_checkpoint(tmp_path / "metric.pt")
    done = call("compare", "a.hyp", "b.hyp", "--ref", "ref.de", "--source", "src.en", "--comet", command, "--json")
    comet = json.loads(done.out)["scores"][-1]
    assert comet["metric"] == "COMET"
    assert comet["signature"].startswith(command)
    with Scorer(command, "--comet") as scorer:
        means = [100 * sum(scorer.scores(SOURCE, side, REFERENCES)) / 3 for side in (A, B)]
    assert [comet["baseline"], comet["candidate"]] == pytest.approx(means)
    assert means[0] != means[1]
    without = call("compare", "a.hyp", "b.hyp", "--ref", "ref.de", "--comet", command)
    assert (without.code, without.err) == (78, "--comet: needs the source sentences. Name their file with --source.\n")


def test_the_name_of_a_file_need_not_be_utf8(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    named = os.fsdecode(b"\xff.hyp")
    Path("a.hyp").rename(named)
    assert main(["compare", named, "b.hyp", "--ref", "ref.de"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"A is \xff.hyp\nB is b.hyp\n")


def test_the_language_of_packed_references_is_that_of_the_text(call: Call) -> None:
    write_lines(Path("ref.zh"), REFERENCES)
    Path("ref.zh.gz").write_bytes(gzip.compress(Path("ref.zh").read_bytes()))
    plain, packed = (call("compare", "a.hyp", "b.hyp", "--ref", name).out for name in ("ref.zh", "ref.zh.gz"))
    assert packed == plain
    assert "tok:zh" in plain


def test_a_document_holds_the_same_and_tokenised_references_are_pointed_out(call: Call) -> None:
    write_lines(Path("ref.de"), [line.replace(".", " .") for line in REFERENCES])
    done = call("compare", "a.hyp", "b.hyp", "--ref", "ref.de", "--json")
    assert (done.code, done.err) == (0, "ref.de: looks tokenised; compare these scores only with each other.\n")
    document = json.loads(done.out)
    assert document["lines"] == 3
    bleu, chrf, ter = document["scores"]
    assert [score["metric"] for score in (bleu, chrf, ter)] == ["BLEU", "chrF2", "TER"]
    assert bleu["difference"] == bleu["candidate"] - bleu["baseline"]
    assert bleu["significant"] == (bleu["p_value"] < 0.05)
    assert all(score["signature"].startswith("nrefs:1|ar:10000|seed:12345|") for score in (bleu, chrf, ter))
    assert [(sentence["line"], sentence["source"], sentence["b"]) for sentence in document["gains"]] == [(2, None, B[1])]
    assert [sentence["line"] for sentence in document["losses"]] == [1]
