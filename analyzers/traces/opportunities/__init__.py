"""Find opportunities: possible changes that make a step shorter, each with an upper limit of the time that it saves."""
