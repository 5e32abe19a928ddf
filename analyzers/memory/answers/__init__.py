"""Answer questions about memory, one per module; the answers are data, and `findings` writes sentences from them."""
