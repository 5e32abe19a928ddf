"""Text tables for documents, the terminal app and the dashboard; each module builds those of one subject."""
