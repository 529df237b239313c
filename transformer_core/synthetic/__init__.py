"""A generated English-German corpus: sentence pairs of a synchronous grammar, labelled with the phenomena that are difficult in each.

The German sentence is a function of the English one, so a model that has learned the grammar can translate every sentence correctly.
"""

from transformer_core.synthetic.phenomena import PHENOMENA
from transformer_core.synthetic.stream import SyntheticPair, generate

__all__ = ["PHENOMENA", "SyntheticPair", "generate"]
