"""Answer one question about memory per module, as data: no sentences here."""
