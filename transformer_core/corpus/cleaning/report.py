"""report.json of data/clean: numbers of pairs in, dropped and repaired by each rule, and out."""

from typing import Annotated

from pydantic import Field, model_validator

from transformer_core.schema import Section, Total

CLEANING_REPORT = "report.json"


class SplitReport(Section):
    """Validation or test: number of pairs, of pairs with an empty side (which stay), and of lines changed by each repair."""

    pairs: Total
    empty: Total
    repaired: dict[str, Total]


class CleaningReport(Section):
    """report.json.

    Attributes:
        dropped: number of pairs by the first rule that drops them; rules that are off are left out.
        repaired: number of changed lines by repair.
        examples: some dropped pairs of each rule, repaired.
        by_weights: number of pairs that the weights of the sources add, below 0 if they leave out more.
        lengths_in: by language, number of sentences by their words; `lengths_out` likewise.
    """

    pairs_in: Total
    dropped: dict[str, Total]
    repaired: dict[str, Total]
    by_weights: int = 0
    pairs_out: Total
    examples: dict[str, list[Annotated[tuple[str, str], Field(strict=False)]]]
    lengths_in: dict[str, list[Total]]
    lengths_out: dict[str, list[Total]]
    splits: dict[str, SplitReport]

    @model_validator(mode="after")
    def _check_parts(self) -> "CleaningReport":
        """Refuse a report whose parts have other languages or repairs."""
        if self.lengths_in.keys() != self.lengths_out.keys():
            raise ValueError(f"lengths_out: must have the languages of lengths_in, {', '.join(self.lengths_in)}")
        for split, record in self.splits.items():
            if record.repaired.keys() != self.repaired.keys():
                raise ValueError(f"splits.{split}.repaired: must have the keys of repaired, {', '.join(self.repaired)}")
        return self
