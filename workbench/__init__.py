"""The `workbench` command: launch training runs, and show reports of the analyzers in terminal and browser."""
