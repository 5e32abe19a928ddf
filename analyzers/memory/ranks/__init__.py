"""Compare ranks: the memory of all of them, and a rank that ran out of memory with the others and its earlier steps."""
