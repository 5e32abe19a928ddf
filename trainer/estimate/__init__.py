"""Estimate the memory of a run before it starts, by running the trainer's own step on fake tensors."""
