"""Start a training job for a benchmark, with torchrun on one node."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]


class Start(Protocol):
    """A function that runs a module (`trainer`) or a script (`job.py`) on `ranks` ranks, and raises an error if it
    fails.
    """

    def __call__(self, target: str, *arguments: str, ranks: int = 1, **environment: str) -> None: ...


def start_job(target: str, *arguments: str, ranks: int = 1, **environment: str) -> None:
    """Run a module or a script under torchrun; with RANK in the environment, run only that rank.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    agent = [] if "RANK" in environment else ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    program = [target] if target.endswith(".py") else ["-m", target]
    settings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    subprocess.run([sys.executable, *agent, *program, *arguments], check=True, capture_output=True, env=settings)
