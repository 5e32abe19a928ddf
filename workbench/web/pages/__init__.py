"""One page a question; each is a function from the view and the address's query to a layout."""
