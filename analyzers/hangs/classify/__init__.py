"""From the wait-for graph to causes: which ranks are the culprits, and in which class."""
