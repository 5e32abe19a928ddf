"""What `workbench hang` asks a job that is still running: its processes, its dumps and its stacks."""
