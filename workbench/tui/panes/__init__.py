"""One pane a question: home, memory, hang, trace, steps."""
