"""The commands: what `workbench inspect`, `compare`, `doctor` and the others do with their parsed options."""
