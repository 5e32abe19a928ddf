"""Find opportunities: possible changes that make a step shorter, each with the time that it would save at most."""
