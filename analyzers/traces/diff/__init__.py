"""Compare two sets of traces: how much longer a step takes, and why."""
