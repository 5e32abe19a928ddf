"""Compute how much memory a recorded run would have needed with another setting."""
