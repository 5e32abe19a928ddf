"""The training data: from documents or rows for fine-tuning to tokens and batches."""
