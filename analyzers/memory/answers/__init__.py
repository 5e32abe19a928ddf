"""Answer questions about memory, one per module, as numbers and tables; `findings` writes the sentences about them."""
