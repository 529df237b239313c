"""The corpus from its sources to token ids: rooms sources, cleaning and tokens, with text and trees below them. Never imports torch."""
