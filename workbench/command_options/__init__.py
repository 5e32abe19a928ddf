"""The options of the commands, and the groups of options that several commands share."""
