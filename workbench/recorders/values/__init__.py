"""Record sums over the values of a run's tensors, to compare two runs, and find the origin of NaN and infinities.

The sums of a run do not depend on its mesh.
"""
