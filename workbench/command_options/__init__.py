"""The options of all commands; options that several commands share form groups."""
