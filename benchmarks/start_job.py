"""How benchmarks start a training job: by torchrun, on one node."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]


class Start(Protocol):
    """What runs a module (`trainer`) or a script (`job.py`) on so many ranks, and raises where it fails."""

    def __call__(self, target: str, *arguments: str, ranks: int = 1, **environment: str) -> None: ...


def start_job(target: str, *arguments: str, ranks: int = 1, **environment: str) -> None:
    """Run a module or a script under torchrun; with RANK in the environment as that rank alone.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    agent = [] if "RANK" in environment else ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    program = [target] if target.endswith(".py") else ["-m", target]
    settings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    subprocess.run([sys.executable, *agent, *program, *arguments], check=True, capture_output=True, env=settings)
