"""Replay a trace: find each block's lifetime, stream, pool, step and training phase, and simulate the allocator."""
