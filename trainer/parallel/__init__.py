"""Functions that apply parallelism to an existing model, one module per kind of parallelism."""
