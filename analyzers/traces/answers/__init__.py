"""Numbers about one account of a trace (a device, or the host): each module answers one question, none words it."""
