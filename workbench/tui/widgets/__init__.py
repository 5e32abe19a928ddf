"""The widgets of the terminal app; charts and long lists make only the lines that are on the screen."""
