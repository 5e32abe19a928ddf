"""Answer questions about one device (or the host) of a trace with numbers, one question per module.

An *account* is the collected numbers about one device that worked in the trace, or about the host if no device worked.
"""
