"""Assign a category to each block: the one that the recorder wrote, else by rules on stacks, phases and lifetimes."""
