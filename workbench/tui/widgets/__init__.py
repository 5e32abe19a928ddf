"""The widgets of the terminal app; charts and long lists create only the lines that are visible."""
