"""The options of all commands; those that several commands share form groups."""
