"""Advice on memory, checked on snapshots of a simulated caching allocator and on printed messages."""
