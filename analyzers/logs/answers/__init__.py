"""Draw conclusions from the events in logs: which event shows the cause, and which rank is to blame."""
