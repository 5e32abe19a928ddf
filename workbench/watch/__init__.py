"""Show a job while it runs: its steps, ranks with problems, and the reason of a hang or failure once dumps show it."""
