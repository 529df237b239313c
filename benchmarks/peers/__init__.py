"""The contenders of benchmarks/training.py and benchmarks/decoding.py, run as processes of their own, and what they share."""
