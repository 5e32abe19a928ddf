"""Memory before the run: a training step of any mesh on one process, with tensors that have no memory."""
