"""Text tables for documents, the terminal app and the dashboard; each module builds the tables of one subject."""
