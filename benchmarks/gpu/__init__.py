"""Measure what needs a CUDA device, in a single command: `python -m benchmarks.gpu`."""
