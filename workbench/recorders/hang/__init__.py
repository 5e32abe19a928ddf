"""Record where each rank stands when a job hangs, fails or dies: Flight Recorder dumps and Python stacks."""
