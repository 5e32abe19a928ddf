"""Find the causes of a hang in the graph of which rank waits for which: the culprits, and the class of each cause."""
