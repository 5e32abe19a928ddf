"""Read a snapshot file into columns (pickle or JSON, any schema since torch 2.0), and look up rows in these."""
