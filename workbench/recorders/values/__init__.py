"""Record sums over the values of a run's tensors, to compare two runs; find where a NaN or infinity began.

Added up over all ranks, the sums do not depend on the mesh. So runs on different meshes can be compared.
"""
