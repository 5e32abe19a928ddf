"""Define the patterns of single log lines, by subject: collectives, data, devices, memory, processes and start-up."""
