"""The contenders of benchmarks/training.py and benchmarks/decoding.py, run in their own processes, and the parts that they share."""
