"""The code that the commands such as `workbench inspect` run after their options were parsed."""
