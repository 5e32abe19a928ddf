"""Read logs of all kinds (this project's, torchtitan's, TensorBoard, consoles) into columns,
one row per rank and step.
"""
