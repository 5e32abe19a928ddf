"""Read data sets of tokens, and what their tokenizer says about the tokens."""
