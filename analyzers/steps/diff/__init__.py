"""Compare the steps of two runs: measures with confidence intervals, phases that grew, and whether the losses agree."""
