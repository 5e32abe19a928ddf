"""What the dumps say together: who waits for whom, and where the programs and signatures of ranks differ."""
