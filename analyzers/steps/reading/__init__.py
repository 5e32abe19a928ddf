"""Read logs of all kinds (this project's, torchtitan's, TensorBoard, consoles) into columns with a row per rank and
step.
"""
