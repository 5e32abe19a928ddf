"""The models, one folder per model family."""
