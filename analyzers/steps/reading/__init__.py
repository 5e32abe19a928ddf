"""Read logs of all kinds into columns with a row per rank and step.

The kinds are this project's step logs, torchtitan's structured logs, TensorBoard files, consoles and tables of metrics.
"""
