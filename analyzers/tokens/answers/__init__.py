"""Find the rows of a data set with mistakes in their masks, from the numbers about each row, and compute statistics."""
