"""Write the files of a running job in a test, as the recorders write them."""

import json
import os
import socket
import struct
import time

MIB = 1 << 20


class FakeRank:
    """Writes the files of a rank. Its process is this one, or a process that no longer exists."""

    def __init__(self, folder, rank=0, pid=None):
        self.folder, self.rank, self.pid = folder, rank, pid or os.getpid()
        (folder / "steps").mkdir(exist_ok=True)
        self.log = folder / "steps" / f"rank_{rank}.jsonl"

    def begin(self, attempt=0):
        self.write(
            schema="workbench.steps/1", rank=self.rank, world_size=2, host=socket.gethostname(), pid=self.pid,
            attempt=attempt, device="cpu", started_ns=time.time_ns(),
        )  # fmt: skip
        self.beat(0, "init")

    def step(self, step, memory=100 * MIB, fwd=1e8, **more):
        row = {"step": step, "start_ns": time.time_ns(), "dur_ns": 10**9, "phases": {"fwd": int(fwd), "bwd": 4 * 10**8}}
        cpu = {"fwd": int(fwd), "bwd": 4 * 10**8}
        told = {"cpu_ns": cpu, "residual_ns": 0, "tokens": 500, "memory_bytes": memory, "tags": []}
        self.write(**(row | told | more))
        self.beat(step, "between")

    def write(self, **row):
        with self.log.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def beat(self, step, phase, ago_s=0.0):
        told = struct.pack("<qqqq32s", time.time_ns() - int(ago_s * 1e9), step, self.pid, 1, phase.encode())
        (self.folder / "steps" / f"heartbeat_{self.rank}.bin").write_bytes(told)


def manifest(folder, **more):
    config = {"training": {"steps": 20}, "comm": {"train_timeout_seconds": 100, "init_timeout_seconds": 300}}
    told = {"schema": "workbench.run/1", "status": "running", "started_ns": time.time_ns(), "ended_ns": None}
    (folder / "run.json").write_text(json.dumps(told | {"config": config, "world_size": 2} | more))
