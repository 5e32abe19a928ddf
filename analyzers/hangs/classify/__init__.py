"""Find the causes of a hang in the wait-for graph: which ranks are the culprits, and the class of each hang."""
