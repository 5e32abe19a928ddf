"""Columns derived from a trace's events: nesting, phases, kinds of work, unions of intervals."""
