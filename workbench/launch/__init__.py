"""The code of `workbench launch`: start a training job with all recorders on, and explain why a job failed."""
