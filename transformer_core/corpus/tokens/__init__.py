"""Token ids: the subword vocabulary, binarized splits and batches."""
