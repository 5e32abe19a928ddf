"""Answer questions about one device (or the host) of a trace with numbers, one question per module."""
