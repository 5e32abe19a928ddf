"""The nodes of a job: which of them sent their files to the run folder (`received`, `gaps`), and their `health`."""
