"""Show a job while it runs: its steps, ranks with problems, and why it hangs or failed, once it has written dumps."""
