"""Compute columns from a trace's events: nesting, phases, kinds of work, unions of intervals."""
