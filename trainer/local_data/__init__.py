"""Local data files: find them and read their records.

This package does not import torch, so that the launcher can check the data before it starts a process.
"""
