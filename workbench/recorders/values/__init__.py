"""Record sums over the values of a run's tensors, to compare two runs; find where a NaN or infinity began.

The total of the sums over all ranks does not depend on the mesh, so runs on different meshes can be compared.
"""
