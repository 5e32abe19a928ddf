"""Understands what a training run left behind: memory snapshots, hangs, traces, steps."""
