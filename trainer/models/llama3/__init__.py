"""The dense model Llama 3: its modules, its published sizes, and ready-made configurations."""
