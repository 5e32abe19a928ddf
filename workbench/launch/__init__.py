"""The code of `workbench launch`: it starts a training job with all recorders on, and explains why a job failed."""
