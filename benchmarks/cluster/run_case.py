"""Run one case on a simulated cluster: start a launcher on each node, break something, and ask the home folder."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.cases import Case
from benchmarks.cluster.namespaces import Cluster

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("job.py")
WORKBENCH = (sys.executable, "-P", "-m", "workbench")
TOKEN, STRANGER = "a token that all nodes have", "a token that one node has"
RECEIVER = "n0:29501"
TIMEOUT_S = 20
PATIENCE_S = 240
ACT_AT_STEP = 3


@dataclass(frozen=True)
class Answer:
    """What `workbench inspect` says of the home folder."""

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    missing: tuple[str, ...]

    def problems(self, case: Case) -> list[str]:
        """Return how the answer differs from the expected one; empty if it is right."""
        lacks = " ".join(self.missing)
        wrong = [] if self.kind == case.kind else [f"expected class {case.kind}"]
        wrong += [] if self.ranks == case.ranks else [f"expected ranks {list(case.ranks)}"]
        wrong += [f"the sentence lacks {word!r}" for word in case.says if word.lower() not in self.sentence.lower()]
        wrong += [f"what is missing lacks {word!r}" for word in case.lacks if word not in lacks]
        return wrong + (["no node may be missing"] if "node " in lacks and not case.lacks else [])


def run_case(case: Case, folder: Path) -> Answer:
    """Run the job of a case with one folder for each node, and return the answer of the home folder."""
    folder = folder.resolve()
    with Cluster(folder, case.nodes) as cluster, contextlib.ExitStack() as stack:
        alone = case.action == "restart"
        receiver = start_receiver(cluster, stack) if alone else None
        jobs = {name: start_job(cluster, case, name, stack) for name in cluster.names}
        home = cluster.home("n0") / ("home" if alone else "outputs")
        act(case, cluster, home)
        if receiver:
            restarted = restart(cluster, receiver, stack)
        deadline = time.monotonic() + PATIENCE_S
        for name, process in jobs.items():
            if name not in case.action:
                process.wait(max(1.0, deadline - time.monotonic()))
        if receiver:
            end(restarted)
    return ask(home)


def start_job(cluster: Cluster, case: Case, name: str, stack: contextlib.ExitStack) -> "subprocess.Popen[bytes]":
    """Start the launcher of a node."""
    token = STRANGER if case.action == f"stranger:{name}" else TOKEN
    command = [
        *WORKBENCH, "launch", "--nnodes", str(case.nodes), "--nproc", "2", "--rdzv-endpoint", "n0:29500",
        "--collect", RECEIVER, "--timeout", str(TIMEOUT_S), "--no-watch", "--", sys.executable, str(JOB),
    ]  # fmt: skip
    environment = {"FAULT": case.fault, "WORKBENCH_TOKEN": token, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if case.action and not case.fault:
        environment["STEPS"] = "100000"
    return cluster.start(name, command, environment, output(cluster, f"{name}.txt", stack))


def start_receiver(cluster: Cluster, stack: contextlib.ExitStack) -> "subprocess.Popen[bytes]":
    """Start a receiver of its own on the first node."""
    command = [*WORKBENCH, "collect", "home", "--listen", RECEIVER, "--nodes", str(len(cluster.names))]
    environment = {"WORKBENCH_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    return cluster.start("n0", command, environment, output(cluster, "receiver.txt", stack))


def output(cluster: Cluster, name: str, stack: contextlib.ExitStack):
    return stack.enter_context((cluster.folder / name).open("ab"))


def act(case: Case, cluster: Cluster, home: Path) -> None:
    """Wait until the job trains, and do what the case says to its nodes."""
    kind, _, names = case.action.partition(":")
    if kind not in ("kill", "cut", "restart"):
        return
    deadline = time.monotonic() + PATIENCE_S
    while not has_trained(home, case.nodes) and time.monotonic() < deadline:
        time.sleep(0.5)
    if case.fault:
        time.sleep(3)  # the job is stuck now, and nobody has noticed yet
    for name in filter(None, names.split(",")):
        (cluster.kill if kind == "kill" else cluster.cut)(name)


def has_trained(home: Path, nodes: int) -> bool:
    """Return whether some steps of all nodes have come home."""
    logs = [*home.glob("steps/rank_*.jsonl"), *home.glob("nodes/*/steps/rank_*.jsonl")]
    return len(logs) == 2 * nodes and all(len(log.read_bytes().splitlines()) > ACT_AT_STEP for log in logs)


def restart(
    cluster: Cluster, receiver: "subprocess.Popen[bytes]", stack: contextlib.ExitStack
) -> "subprocess.Popen[bytes]":
    """Kill the receiver, wait until the nodes have noticed, and start it again."""
    end(receiver, signal.SIGKILL)
    time.sleep(4)
    return start_receiver(cluster, stack)


def end(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> None:
    """End a process on a node, which is a child of the process that entered the node."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children or [process.pid]:
        os.kill(int(pid), number)
    process.wait(30)


def ask(home: Path) -> Answer:
    """Return what `workbench inspect` says of a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*WORKBENCH, "inspect", str(home), "--json", "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout:
        return Answer("none", (), done.stderr.strip(), ())
    verdict = json.loads(done.stdout)["verdict"]
    return Answer(verdict["class"], tuple(verdict["ranks"]), verdict["sentence"], tuple(verdict["missing"]))
