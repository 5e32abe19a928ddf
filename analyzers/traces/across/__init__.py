"""Combine the traces of several ranks: matched collectives, clocks, waits, stragglers and their causes."""
