"""What a step could do without: opportunities, each with the time that it would save at most."""
