"""The code behind commands such as `workbench inspect`; it runs after the options of a command have been parsed."""
