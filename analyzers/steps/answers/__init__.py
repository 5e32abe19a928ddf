"""Answer questions about the steps, one per module, with numbers and enums; `findings` writes sentences from them."""
