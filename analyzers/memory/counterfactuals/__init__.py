"""Compute how much memory a recorded run would have needed with a change, and which change a failure needs."""
