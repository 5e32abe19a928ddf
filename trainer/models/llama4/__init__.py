"""Llama 4: Llama 3 whose feed-forward layers are mixtures of experts."""
