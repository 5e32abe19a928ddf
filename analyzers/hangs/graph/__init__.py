"""Compare the dumps of all ranks: which rank waits for which, and where the programs and signatures of ranks differ."""
