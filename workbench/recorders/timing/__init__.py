"""Record how long the steps and their phases take: step logs and profiler traces."""
