"""manifest.json of data/raw: the corpus, the sums of its files, and their origins."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transformer_core.corpus.text import SPLITS
from transformer_core.schema import Language, Name, Section, Total

MANIFEST = "manifest.json"

Origin = dict[str, str]
# Further scores, with which published figures on a corpus were computed (evaluation/moses_bleu.py and error_rates.py).
FurtherScore = Literal["multi30k-lower", "word-error-rate", "symbol-error-rate"]
SYMBOL_ERRORS: FurtherScore = "symbol-error-rate"  # Of a corpus whose tokens are symbols.


class SideRecord(Section):
    """A file of a split."""

    sha256: str
    lines: Total


class SplitRecord(Section):
    """A split; `files` are by language; `directions`, if several, are source, target and number of pairs of consecutive lines."""

    pairs: Total
    files: dict[str, SideRecord]
    directions: list[Annotated[tuple[Language, Language, Total], Field(strict=False)]] = Field(default_factory=list)


class Manifest(Section):
    """The content of manifest.json; `splits` are `SPLITS` and further test sets; `metrics` is missing if the entry names none."""

    corpus: Name
    source: Language
    target: Language
    licence: str | None
    splits: dict[str, SplitRecord]
    origin: list[Origin]
    metrics: list[FurtherScore] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_parts(self) -> "Manifest":
        """Refuse a manifest without a split, with a split without a side, or with a file of no split."""
        for split in SPLITS:
            if split not in self.splits:
                raise ValueError(f"splits.{split}: missing")
        for split in self.splits:
            for language in (self.source, self.target):
                if language not in self.splits[split].files:
                    raise ValueError(f"splits.{split}.files.{language}: missing")
        for number, origin in enumerate(self.origin):
            if origin.get("split") not in self.splits:
                raise ValueError(f"origin.{number}.split: must be one of {', '.join(self.splits)}")
        return self
