"""Attach the recorders to a script that does not call them, through a hook that Python runs when a process starts."""
