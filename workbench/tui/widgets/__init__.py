"""The widgets of the terminal app; charts and long lists create only the visible lines."""
