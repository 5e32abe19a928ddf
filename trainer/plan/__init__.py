"""Search for the settings of a job that fit into a device's memory and train fastest."""
