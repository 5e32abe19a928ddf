"""Read the Python stacks of a rank: of its threads, and of the child processes that it started."""
