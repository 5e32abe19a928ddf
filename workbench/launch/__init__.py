"""Starts a training job with all recorders configured, and explains the failure if it fails."""
