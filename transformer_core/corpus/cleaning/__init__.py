"""Cleaning: from data/raw to data/clean."""
