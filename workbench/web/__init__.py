"""The web face: a dashboard on loopback that draws the same report."""
