"""Traces of several ranks together: matched collectives, clocks, waits, stragglers and their causes."""
