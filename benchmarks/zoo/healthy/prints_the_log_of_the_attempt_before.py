"""A resumed job prints the end of the log of the attempt before, which failed with a timeout, and trains to its end.

class: healthy
culprit: none
ranks: 2
collection: seventh
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

BEFORE = """\
| step 1199 loss 2.031
| Traceback (most recent call last):
|   File "/runs/41/train.py", line 88, in <module>
|     main()
|   File "/runs/41/train.py", line 61, in main
|     dist.all_reduce(gradient)
| RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete
| slurmstepd: error: *** STEP 41.0 ON node017 CANCELLED AT 2024-05-02T11:03:17 ***
"""


def main():
    if dist.get_rank() == 0:
        print("resuming from /runs/41/step-1199; its last lines were:", BEFORE, sep="\n", flush=True)
    for step in range(1200, 1212):
        dist.all_reduce(torch.ones(4))
        print(f"step {step} loss {2400 / step:.3f}", flush=True)
    print("done", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
