"""The model Llama 4: Llama 3 with mixtures of experts in place of some or all feed-forward layers."""
