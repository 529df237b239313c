"""Evaluation of translations and parses: scores, comparisons, and the report of a run with its figures."""
