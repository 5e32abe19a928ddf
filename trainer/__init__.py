"""A small trainer for PyTorch models, with torchtitan's configuration keys.

It writes the traces, logs and snapshots that the analyzers read.
"""
