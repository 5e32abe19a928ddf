"""Traces of many ranks in one file of the Chrome trace format, for Perfetto and chrome://tracing."""
