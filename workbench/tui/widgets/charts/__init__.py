"""Charts of the terminal app, drawn on Textual's line API: their cost depends on the screen, not on the data."""
