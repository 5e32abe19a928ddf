"""Run any training script to the end of its second step on tensors without values, to estimate its memory."""
