"""Small files that are cheap to read but expensive to analyse, and the program's limits on their cost."""
