"""Parallelism, applied to a model from outside: one file for each kind."""
