"""Analyzers of the files that a PyTorch training run leaves behind:
memory snapshots, hang dumps, traces and step logs.
"""
