"""Charts of the terminal app, drawn with Textual's line API: their cost depends on the screen size, not on the data."""
