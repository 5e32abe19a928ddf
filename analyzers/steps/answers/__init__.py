"""Answer questions about the steps, one question per module, with numbers and enums and without sentences.

The package `findings` writes the sentences from these answers.
"""
