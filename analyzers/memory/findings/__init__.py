"""Turn answers about memory into findings and the verdict; all sentences of the memory analyzer are written here."""
