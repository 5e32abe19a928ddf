"""Answer questions about one device (or the host) of a trace with numbers, one question per module.

An *account* is a device that worked in the trace, or the host if no device worked: each has numbers of its own.
"""
