"""Read data sets of tokens, and the facts about these tokens in their tokenizer."""
