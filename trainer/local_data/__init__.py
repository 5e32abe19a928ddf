"""Local data files: which of them to read, and their records. It needs no torch, so that the launcher checks them."""
