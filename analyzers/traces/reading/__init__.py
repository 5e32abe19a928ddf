"""Turn the text of a profiler trace into columns: one row an event, times in integer nanoseconds."""
