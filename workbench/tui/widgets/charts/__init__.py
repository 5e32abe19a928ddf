"""Charts of the terminal app, drawn with Textual's line API; the cost depends on the screen size, not on the data."""
