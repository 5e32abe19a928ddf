"""Dense Llama 3."""
