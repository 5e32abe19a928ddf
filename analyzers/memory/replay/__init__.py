"""Replay a trace: when each block lived, in which stream, pool, step and phase; and simulate the allocator."""
