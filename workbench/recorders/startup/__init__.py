"""Attach the recorders to an unchanged training script, with a module that Python imports when a process starts."""
