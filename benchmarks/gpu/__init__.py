"""What only a CUDA device can show, in one command for a machine with one of them: `python -m benchmarks.gpu`."""
