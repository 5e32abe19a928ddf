"""Read the bytes of a log, and find the events that its lines report."""
