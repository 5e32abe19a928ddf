"""Shows and launches training runs; asks the analyzers what they mean."""
