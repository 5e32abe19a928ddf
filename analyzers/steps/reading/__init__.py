"""Logs of all kinds (ours, torchtitan's, TensorBoard, consoles) -> columns, one row per rank and step."""
