"""The training data: from documents or rows to tokens and batches."""
