"""Our trainer beside torchtitan 0.2 on the same machine: `python -m benchmarks.torchtitan_speed --site FOLDER`."""
