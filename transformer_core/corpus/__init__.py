"""The corpus from its sources to token ids: packages sources, cleaning and tokens, which use text and trees. It never imports torch."""
