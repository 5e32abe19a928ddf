"""A job while it runs: what is going on, and why it hangs or died as soon as that is known."""
