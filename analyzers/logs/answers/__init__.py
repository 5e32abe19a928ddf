"""What follows from the events of logs: which one is the cause, and which rank is to blame."""
