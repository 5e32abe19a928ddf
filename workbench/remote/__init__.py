"""Read artefacts, the files that a job wrote, on other machines: copy them, or let the workers of a cluster read."""
