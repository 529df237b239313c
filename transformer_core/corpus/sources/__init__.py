"""Where a corpus comes from: the catalogue, fetching, file formats, and data/raw."""
