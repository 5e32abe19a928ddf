"""From the columns of another trainer's log to steps: which column is which quantity, and which row which step."""
