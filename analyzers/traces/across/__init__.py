"""across."""
