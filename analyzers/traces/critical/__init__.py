"""Find the critical path: the chain of work and waiting that determines the duration of a recording."""
