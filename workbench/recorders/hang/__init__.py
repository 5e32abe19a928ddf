"""Record where each rank is when a job hangs, fails or dies: Flight Recorder dumps and Python stacks."""
