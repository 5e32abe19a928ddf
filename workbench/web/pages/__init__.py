"""One page for each question: a function from the served run and the query of the address to a layout."""
