"""What `workbench hang` reads from a job that is still running: its processes, its dumps and its stacks."""
