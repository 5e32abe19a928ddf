"""A model that writes programs is rewarded by running them; many raise, abort, or take too long.

class: healthy
culprit: none
ranks: 2
collection: fifth
"""

import logging
import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)


PROGRAMS = [
    "print(sum(range(10)))",
    "values = {}\nvalues['missing']",
    "import os\nos.abort()",
    "def f(n):\n    return f(n + 1)\nf(0)",
    "import time\ntime.sleep(60)",
    "import sys\nsys.exit('Killed: out of memory')",
]


def reward(program):
    try:
        command = [sys.executable, "-S", "-c", program]
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=1.5)
    except subprocess.TimeoutExpired as error:
        logging.warning("program %s", error)
        return -1.0
    if done.returncode:
        logging.info("program failed with exit code %d:\n%s", done.returncode, done.stderr)
        return 0.0
    return 1.0


def main():
    for step, program in enumerate(PROGRAMS):
        mean = torch.tensor([reward(program)])
        dist.all_reduce(mean)
        logging.info("step %d reward %.2f", step, mean.item() / dist.get_world_size())


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
