"""The model DeepSeek-V3: latent attention and mixtures of experts."""
