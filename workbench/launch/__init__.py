"""Starts a training job with every recorder set right, and says why it failed if it does."""
