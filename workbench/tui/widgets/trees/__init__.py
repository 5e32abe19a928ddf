"""Trees of the terminal app, which create a node only when its parent is opened."""
