"""Analyze the files that a PyTorch training run leaves behind: memory snapshots, hang dumps, traces and logs."""
