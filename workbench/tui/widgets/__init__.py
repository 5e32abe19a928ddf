"""What the screens are made of; drawn by hand on the line API, so that size does not matter."""
