"""Cache the columns that readers write, in one folder per artefact, so that each artefact is read only once."""
