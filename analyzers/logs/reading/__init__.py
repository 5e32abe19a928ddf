"""Read the bytes of a log, and find the events (exceptions, timeouts, ends of processes) that its lines report."""
