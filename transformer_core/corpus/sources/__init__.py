"""Sources of a corpus: the catalogue, downloads, file formats, and data/raw."""
