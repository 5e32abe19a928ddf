"""Give each block a category, such as gradients: the recorded one, or a guess from its stack, phase and lifetime."""
