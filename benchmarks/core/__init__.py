"""Measure how fast the readers are beside the libraries that only decode the same files (`__main__`)."""
