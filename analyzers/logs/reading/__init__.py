"""Read the bytes of a log and find its events."""
