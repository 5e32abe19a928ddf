"""`workbench inspect RUN --prove`: apply the best advice against a failed allocation, and run a few steps with it."""
