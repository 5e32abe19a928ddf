"""The critical path: the chain of work and waiting that the recorded time consists of."""
