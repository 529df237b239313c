"""All sentences of the test set in one HTML file: a table that a small script in the file sorts and filters.

The content security policy allows this script alone, by its hash. Without scripts the page is a plain table.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from transformer_core.corpus.text import length_in_words
from transformer_core.evaluation.metrics import FULL_SCORE
from transformer_core.evaluation.pages import page, script
from transformer_core.evaluation.report import Run

_SCRIPT = "sentences.js"


def render_sentences(report: Run, metric: str) -> str:
    """Return the page; `metric` is the name of the sentences' own scores, chrF2 or F1."""
    code = script(_SCRIPT)
    digest = b64encode(sha256(code.encode()).digest()).decode()
    phenomena = report.phenomena or [""] * len(report.sources)
    lengths = map(length_in_words, report.sources)
    rows = zip(report.sentence_scores, lengths, report.sources, report.references, report.hypotheses, phenomena, strict=True)
    return page("sentences.html", manifest=report.manifest, metric=metric, rows=rows, full=FULL_SCORE, script=code, digest=digest)
