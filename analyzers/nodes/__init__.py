"""Read what is known about the nodes of a job: which of them sent their files (`received`, `gaps`), their `health`."""
