"""Turn answers into findings and the verdict: the only sentences of this room."""
