"""The wait for a message of isend, irecv and batch_isend_irecv is seen in a rank's stack, and changes nothing else."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_job

pytestmark = pytest.mark.slow

JOB = """
import json, os, sys, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from workbench import recorders

dist.init_process_group("gloo")
rank, out = dist.get_rank(), sys.argv[1]
before = vars(Work)["wait"]
stop = recorders.start(out)
dist.all_reduce(torch.ones(1), async_op=True).wait()
untouched = vars(Work)["wait"] is before

def send():
    return dist.isend(torch.full((1,), 7.0), 0)

def receive(buffer):
    return dist.batch_isend_irecv([dist.P2POp(dist.irecv, buffer, 1)])[0]

names = []
if rank == 1:
    time.sleep(1.0)
    send().wait()
else:
    main, buffer = threading.main_thread().ident, torch.zeros(1)
    def look():
        time.sleep(0.3)
        frame = sys._current_frames()[main]
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
    threading.Thread(target=look).start()
    done = receive(buffer).wait()
    collective = dist.all_reduce(torch.ones(1), async_op=True)
    with open(f"{out}/seen.json", "w") as file:
        json.dump({"stack": names, "value": buffer.item(), "done": done, "untouched": untouched}, file)
if rank == 1:
    collective = dist.all_reduce(torch.ones(1), async_op=True)
collective.wait()
dist.barrier()
dist.destroy_process_group()
"""


def test_the_wait_for_a_message_is_in_the_stack(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    out = tmp_path / "outputs"
    out.mkdir()
    ended = run_job(str(script), [str(out)], tmp_path / "logs", 2)
    assert ended.returncode == 0, ended.output
    seen = json.loads((out / "seen.json").read_text())
    assert seen["stack"][:2] == ["_wait_for_message", "wait"]
    assert (seen["value"], seen["done"], seen["untouched"]) == (7.0, True, True)
