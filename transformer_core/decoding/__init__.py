"""Beam search and the translator built on it (paper 6.1)."""
