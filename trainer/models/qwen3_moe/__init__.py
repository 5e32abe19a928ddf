"""The model Qwen3 with experts: Qwen3 with mixtures of experts in place of feed-forward layers."""
