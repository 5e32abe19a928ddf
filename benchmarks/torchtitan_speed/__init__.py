"""Compare our trainer with torchtitan 0.2 on this machine: `python -m benchmarks.torchtitan_speed --site FOLDER`."""
