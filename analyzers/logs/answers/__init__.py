"""Draw conclusions from the events in logs: which of them is the cause, and which rank is to blame."""
