"""Show a job while it runs: its steps, ranks with problems, and why it hangs or failed as soon as dumps say so."""
