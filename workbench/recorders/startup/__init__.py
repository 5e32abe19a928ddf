"""Attach the recorders to a script that does not know of them: a hook that Python runs when a process starts."""
