"""The terminal app, which shows a run, a file or a comparison."""
