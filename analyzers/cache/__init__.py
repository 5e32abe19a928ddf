"""Cache the columns that readers write, one folder for each artefact, so that it is read only once."""
