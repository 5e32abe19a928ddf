"""Measure the processor time that collecting costs a node and the receiver: `python -m benchmarks.cluster.cost`.

A node has eight ranks, whose heartbeats change all the time and whose step logs grow by a line a second. Then many
nodes at once send to one receiver, in threads of one process that is not measured.
"""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.collect.link import Link
from workbench.collect.sender import Sender

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"
RANKS, SECONDS, NODES = 8, 30, 64
BEAT = struct.Struct("<qqqq32s")
COLLECT = (sys.executable, "-P", "-m", "workbench", "collect")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder, "home"), free_port()
        receiver = start([*COLLECT, str(home), "--listen", f"127.0.0.1:{port}"])
        time.sleep(3)
        node = Path(folder, "node")
        write_rank_files(node, 0)
        sender = start([*COLLECT, str(node), "--to", f"127.0.0.1:{port}"])
        time.sleep(3)
        before = cpu_s(sender.pid), cpu_s(receiver.pid)
        train(node, SECONDS)
        used = cpu_s(sender.pid) - before[0], cpu_s(receiver.pid) - before[1]
        sender.terminate()
        sender.wait()
        print(f"sender of a node with {RANKS} ranks: {used[0] / SECONDS:.3%} of a processor")
        print(f"receiver, for each such node: {used[1] / SECONDS:.3%} of a processor")
        many(Path(folder), port, receiver.pid)
        receiver.terminate()
        receiver.wait()


def many(folder: Path, port: int, receiver: int) -> None:
    """Let many nodes send once what a hang leaves, and print the processor time of the receiver."""
    link = Link(f"http://127.0.0.1:{port}", TOKEN.encode())
    senders = []
    for number in range(NODES):
        node = folder / f"n{number}"
        write_rank_files(node, number * RANKS)
        for rank in range(RANKS):
            (node / "dumps" / f"rank_{number * RANKS + rank}").write_bytes(os.urandom(250_000))
        senders.append(Sender(node, link, f"n{number}"))
    before, began = cpu_s(receiver), time.monotonic()
    run_all([lambda sender=sender: sender.run(lambda: True) for sender in senders])
    took, used = time.monotonic() - began, cpu_s(receiver) - before
    size = f"{NODES * RANKS * 250_000 / 1e6:.0f} MB in {NODES * RANKS} files"
    print(f"dumps of {NODES} nodes at once ({size}): {used:.1f} s of the receiver's processor time, {took:.1f} s")


def run_all(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write_rank_files(node: Path, first: int) -> None:
    for name in ("dumps", "steps", "logs"):
        (node / name).mkdir(parents=True, exist_ok=True)
    for rank in range(first, first + RANKS):
        (node / "dumps" / f"groups_{rank}.json").write_text(f'{{"rank": {rank}}}')
        (node / "steps" / f"rank_{rank}.jsonl").write_text("{}\n")
        (node / "logs" / f"rank_{rank}.log").write_text("")


def train(node: Path, seconds: int) -> None:
    """Do what the recorders of a node do: move heartbeats, and append to step logs and console logs."""
    line = "x" * 400 + "\n"
    for second in range(seconds):
        for rank in range(RANKS):
            beat = BEAT.pack(time.time_ns(), second, rank, second + 1, b"fwd")
            (node / "steps" / f"heartbeat_{rank}.bin").write_bytes(beat)
            for log in (node / "steps" / f"rank_{rank}.jsonl", node / "logs" / f"rank_{rank}.log"):
                with log.open("a") as file:
                    file.write(line)
        time.sleep(1)


def start(command: list[str]) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"WORKBENCH_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
