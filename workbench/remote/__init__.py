"""Read artefacts, the files that a job wrote, on other machines: copy them, or let a cluster's workers read."""
