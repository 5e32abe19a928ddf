"""Parallelism, applied to a model from outside: one file a kind."""
