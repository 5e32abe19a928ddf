"""Read the files of a run folder that show a hang: Flight Recorder dumps, Python stacks, how ranks ended, and so on."""
