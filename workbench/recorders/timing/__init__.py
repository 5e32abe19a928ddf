"""Record the duration of steps and their phases: step logs and profiler traces."""
