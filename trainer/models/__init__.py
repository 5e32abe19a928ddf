"""One folder a model."""
