"""The dense model Qwen3: its modules, its published sizes, and ready-made configurations."""
