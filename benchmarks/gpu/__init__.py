"""Measurements that need a CUDA device, in a single command: `python -m benchmarks.gpu`."""
