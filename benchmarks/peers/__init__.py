"""The contenders of benchmarks/training.py, a file each, run as processes of their own."""
