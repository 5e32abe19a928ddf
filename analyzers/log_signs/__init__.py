"""Text by which several rooms recognise the same thing in logs: an error raised on all ranks, a step log."""
