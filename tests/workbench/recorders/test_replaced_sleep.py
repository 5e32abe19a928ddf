"""A script that replaces `time.sleep`, as tests of schedules do, has no thread of ours that runs without a pause."""

import subprocess
import sys

SCRIPT = """
import sys, threading, time
import torch
from workbench import recorders
recorders.start(sys.argv[1], steps=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
time.sleep = lambda seconds: None
threading.Event().wait(0.5)
began = time.process_time()
threading.Event().wait(2)
print(time.process_time() - began)
"""


def test_a_replaced_sleep_makes_no_thread_of_ours_spin(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(ended.stdout) < 0.2
