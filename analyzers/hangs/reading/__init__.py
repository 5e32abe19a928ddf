"""What lies in a run folder about a hang, read into typed structs: dumps, side files, stacks, ends of ranks."""
