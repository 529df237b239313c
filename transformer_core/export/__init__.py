"""Models of ours in the formats of other engines."""
