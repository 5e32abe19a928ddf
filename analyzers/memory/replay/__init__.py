"""Replay a trace: compute when each block lived, and in which stream, pool, step and phase; simulate the allocator."""
