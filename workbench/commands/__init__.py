"""The code behind the commands: `workbench inspect`, `compare`, `doctor` and the others, after option parsing."""
