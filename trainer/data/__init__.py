"""The training data: documents, tokens and batches."""
