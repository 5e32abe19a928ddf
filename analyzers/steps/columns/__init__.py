"""The columns of another trainer's log as its file has them, and what their names mean."""
