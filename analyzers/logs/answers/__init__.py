"""Draw conclusions from the events in logs: which of them shows the cause, and which rank is to blame."""
