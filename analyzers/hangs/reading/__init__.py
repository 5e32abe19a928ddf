"""Read the files of a run folder that show a hang: dumps, stacks, how ranks ended, and other files beside the dumps."""
