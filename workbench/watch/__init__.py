"""Show a job while it runs: steps, ranks in trouble, and why it hangs or died as soon as its dumps say so."""
