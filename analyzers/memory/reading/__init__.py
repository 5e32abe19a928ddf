"""Read a memory snapshot file (pickle or JSON, any schema since torch 2.0) into columns, and look values up in them."""
