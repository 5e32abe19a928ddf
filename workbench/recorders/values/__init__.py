"""What are the values of a run's tensors? Sums that two runs can be compared by, whatever their meshes."""
