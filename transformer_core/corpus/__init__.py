"""The corpus from source to binarized: catalogue, sources, cleaning, subwords, memory-mapped token ids. Never imports torch."""
