"""Give each block a category, such as gradients: the recorder's, or a guess from its stack, phase and lifetime."""
