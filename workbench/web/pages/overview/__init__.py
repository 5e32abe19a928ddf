"""The dashboard's first page: the verdict, the picture that shows it, and each step on one time axis."""
