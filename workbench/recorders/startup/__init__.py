"""Attach the recorders to an unchanged training script, by a module that Python imports when a process starts."""
