"""The columns of another trainer's log, and the quantities that their names stand for."""
