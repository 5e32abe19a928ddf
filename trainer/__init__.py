"""A small trainer for PyTorch models, with torchtitan's configuration; it writes what the analyzers read."""
