"""Find opportunities: ways to make a step shorter, each with the time that it would save at most."""
