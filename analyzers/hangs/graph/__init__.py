"""Combine the dumps of all ranks: who waits for whom, and where the programs and signatures of ranks differ."""
