"""Tables of text, one module a question: what stands in the documents, the terminal app and the dashboard."""
