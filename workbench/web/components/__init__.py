"""Pure functions from results to what Dash draws."""
