"""Record sums over the values of a run's tensors. They do not depend on the mesh, so that two runs can be compared."""
