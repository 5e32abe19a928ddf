"""Estimate the memory of a run before it: the trainer's own step, rehearsed with tensors that have no memory."""
