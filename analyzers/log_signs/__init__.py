"""Recognise the same things in logs for several analyzers: errors raised on all ranks, hints, and step logs."""
