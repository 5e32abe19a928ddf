"""The panes of the terminal app: home, memory, hang, trace, steps and others, one module each."""
