"""Constituency parsing (paper 6.3), a task beside translation: trees as symbols, brackets, F1. The core loads it by its name."""
