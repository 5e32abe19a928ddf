"""Read data sets of tokens, and what a tokenizer says about them."""
