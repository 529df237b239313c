"""A generated English-German corpus: sentence pairs of a synchronous grammar, each labelled with its grammatical phenomena.

The English sentence determines the German one, so a model that has learned the grammar can translate every sentence correctly.
"""
