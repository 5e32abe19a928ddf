"""Run any training script up to its second optimizer step on tensors without values, to estimate its memory."""
