"""Launch the real torchtitan, of any version, with our recorders on: `workbench launch --trainer torchtitan`."""
