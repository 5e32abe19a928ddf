"""Trees of the terminal app, which make a node only when its parent is opened."""
