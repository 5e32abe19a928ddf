"""Launch the real torchtitan, of any version, with our recorders: `workbench launch --trainer torchtitan`."""
