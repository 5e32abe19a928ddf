"""Compare a rank that ran out of memory with the other ranks, and with its own earlier steps."""
