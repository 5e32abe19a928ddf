"""Sentences about traces: every title, reason, next step and verdict of the room is worded here and nowhere else."""
