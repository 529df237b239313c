"""The models before the Transformer that the paper compares with. The registry in transformer_core/sizes.py alone names this package."""
