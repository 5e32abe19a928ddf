"""Write traces of many ranks to one file in the Chrome trace format, for Perfetto and chrome://tracing."""
