"""Run a training script that is not ours up to its second optimizer step, on tensors without values."""
