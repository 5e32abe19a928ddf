"""Turn answers about steps into findings and the verdict; all sentences of the steps analyzer are written here."""
