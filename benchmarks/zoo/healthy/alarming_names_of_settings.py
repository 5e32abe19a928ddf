"""The settings and metrics of a run have names that sound like failures.

class: healthy
culprit: none
ranks: 3
collection: fifth
"""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

SETTINGS = {
    "on_error": "abort",
    "nccl_timeout": 1800,
    "kill_on_bad_exit": True,
    "oom_retries": 3,
    "fatal_signals": ["SIGSEGV", "SIGKILL", "SIGBUS"],
    "experiment": "deadlock_detection_v2",
}


def main():
    print(json.dumps(SETTINGS, indent=2), flush=True)
    for step in range(15):
        failures = torch.tensor([float(step % 3)])
        dist.all_reduce(failures)
        print(
            f"step {step} loss {1 / (step + 1):.4f} timeout_rate {failures.item() / 90:.3f} crash_recall 0.91 "
            f"segfault_f1 0.88 deadlock_error {0.5 / (step + 1):.3f}",
            flush=True,
        )
    print("error analysis: 0 fatal, 2 critical, 5 warnings in 15 examples", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
