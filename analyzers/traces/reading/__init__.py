"""Read the text of a profiler trace into columns: one row per event, times in integer nanoseconds."""
