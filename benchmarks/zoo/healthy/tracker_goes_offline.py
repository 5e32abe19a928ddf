"""The experiment tracker cannot reach its server, prints how it failed, and the training goes on without it.

class: healthy
culprit: none
ranks: 2
collection: fourth, kept back
"""

import os
import sys
import traceback
import urllib.request
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Tracker:
    def __init__(self):
        self.online = True
        try:
            urllib.request.urlopen("http://127.0.0.1:9/api/runs", timeout=2)
        except OSError:
            traceback.print_exc()
            print("tracker: ERROR Network error (ConnectionError), entering retry loop.", file=sys.stderr)
            print("tracker: WARNING running offline, metrics are kept in ./runs", file=sys.stderr)
            self.online = False

    def finish(self):
        print("tracker: Run summary:", file=sys.stderr)
        print("tracker:   loss 0.08333", file=sys.stderr)
        print("tracker: You can sync this run to the cloud by running: tracker sync ./runs/offline-1", file=sys.stderr)


def main():
    tracker = Tracker() if dist.get_rank() == 0 else None
    for step in range(12):
        value = torch.ones(4)
        dist.all_reduce(value)
        if dist.get_rank() == 0:
            print(f"step {step} | loss {1 / (step + 1):.5f}", flush=True)
    if tracker:
        tracker.finish()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
