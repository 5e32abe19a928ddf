"""Record the position of each rank when a job hangs, fails or dies: Flight Recorder dumps and Python stacks."""
