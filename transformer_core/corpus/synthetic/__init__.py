"""A generated English-German corpus: sentence pairs of a synchronous grammar, with labels of what is difficult in each.

The German sentence is a function of the English one, so that a model that has understood the grammar can be right about all of it.
"""

from transformer_core.corpus.synthetic.phenomena import PHENOMENA
from transformer_core.corpus.synthetic.stream import SyntheticPair, generate

__all__ = ["PHENOMENA", "SyntheticPair", "generate"]
