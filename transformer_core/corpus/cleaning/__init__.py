"""From data/raw to data/clean."""
