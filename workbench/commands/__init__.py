"""The code behind the commands such as `workbench inspect`; it runs after a command's options have been parsed."""
