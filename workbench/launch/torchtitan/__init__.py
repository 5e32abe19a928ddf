"""Launch the real torchtitan, in any version, with our recorders on: `workbench launch --trainer torchtitan`."""
