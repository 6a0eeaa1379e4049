"""Measures gpuhash against the limits of the memory and against what people use instead: ``python -m benchmarks``."""
