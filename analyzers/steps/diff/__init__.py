"""One run against another: measures with confidence intervals, phases that grew, and whether the losses agree."""
