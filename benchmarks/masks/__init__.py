"""Training data with planted mask mistakes, and as many data sets without one, to score `workbench tokens`."""
