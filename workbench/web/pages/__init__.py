"""One page a question; each is a function from the served run and the address's query to a layout."""
