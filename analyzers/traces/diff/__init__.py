"""Two sets of traces compared: how much longer a step takes and what that is due to."""
