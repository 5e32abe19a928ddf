"""Analyze the files that a PyTorch training run leaves behind, such as memory snapshots, hang dumps,
traces and logs.
"""
