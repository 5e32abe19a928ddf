"""Compare the dumps of all ranks: which rank waits for which, and where the operations of ranks differ."""
