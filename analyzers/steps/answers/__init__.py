"""Each module answers one question about the steps, with numbers and enums; sentences are made in `findings`."""
