"""Show a job while it runs: steps, ranks with problems, and the cause of a hang or failure once there are dumps."""
