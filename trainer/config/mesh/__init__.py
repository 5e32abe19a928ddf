"""How the ranks of a job form a mesh: the degrees of parallelism, pipeline stages, and the nearest valid mesh."""
