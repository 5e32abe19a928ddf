"""Check that advice holds when a job follows it: plans of settings, and changes after a failed allocation."""
