"""Run the cases on a simulated cluster, and compare the answers with the expected ones.

python -m benchmarks.cluster [CASE ...] [--aside] [--keep FOLDER]      Linux, as root; a case takes about a minute

Each job has two ranks on each node: ranks 0 and 1 on node n0, ranks 2 and 3 on n1, and so on. The expected answers were
written before the code that answers.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.namespaces import Cluster

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("job.py")
WORKBENCH = (sys.executable, "-P", "-m", "workbench")
TIMEOUT_S = 20
PATIENCE_S = 240
ACT_AT_STEP = 3


@dataclass(frozen=True)
class Case:
    """A job that breaks, and the answer that it must get.

    `fault` is `KIND:RANK:STEP` for `job.py`. `action` happens to a node while the job runs: `kill:n2` kills all of its
    processes. `says` are words of the sentence, `lacks` words of what was missing (none: no
    node may be missing). `aside` cases are run for the first time when all rules are written.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    fault: str = ""
    action: str = ""
    nodes: int = 3
    says: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    aside: bool = False


CASES = (
    Case("stuck_rank", "host_stuck", (3,), "stuck:3:5", says=("rank 3", "job.py", "load_batch")),
    Case("dead_node", "dead", (4, 5), action="kill:n2", says=("n2",), lacks=("n2",)),
    Case("error_elsewhere", "crashed", (4,), "raise:4:5", says=("rank 4", "ValueError", "job.py")),
    Case("killed_rank", "dead", (2,), "kill:2:5", says=("rank 2",)),
    Case("skipped", "skipped", (5,), "skip:5:5", says=("rank 5",)),
    Case("healthy", "healthy", ()),
    Case("mismatch", "mismatch", (4,), "shape:4:5", says=("rank 4",), aside=True),
    Case("first_node_raises", "crashed", (0,), "raise:0:5", says=("rank 0", "ValueError"), aside=True),
    Case("two_nodes_of_four_die", "dead", (2, 3, 6, 7), action="kill:n1,n3", nodes=4, lacks=("n1", "n3"), aside=True),
)


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
    """Run the job of a case with one folder for each node, and return the answer of the common folder."""
    folder = folder.resolve()
    with Cluster(folder, case.nodes) as cluster, contextlib.ExitStack() as stack:
        home = folder / "home"
        jobs = {name: start_job(cluster, case, name, stack) for name in cluster.names}
        act(case, cluster, home)
        deadline = time.monotonic() + PATIENCE_S
        for name, process in jobs.items():
            if name not in case.action:
                process.wait(max(1.0, deadline - time.monotonic()))
    return ask(home)


def start_job(cluster: Cluster, case: Case, name: str, stack: contextlib.ExitStack) -> "subprocess.Popen[bytes]":
    """Start the launcher of a node."""
    command = [
        *WORKBENCH, "launch", "--nnodes", str(case.nodes), "--nproc", "2", "--rdzv-endpoint", "n0:29500",
        "--collect", str(cluster.folder / "home"), "--timeout", str(TIMEOUT_S), "--no-watch", "--",
        sys.executable, str(JOB),
    ]  # fmt: skip
    environment = {"FAULT": case.fault, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if case.action and not case.fault:
        environment["STEPS"] = "100000"
    return cluster.start(name, command, environment, output(cluster, f"{name}.txt", stack))


def output(cluster: Cluster, name: str, stack: contextlib.ExitStack):
    return stack.enter_context((cluster.folder / name).open("ab"))


def act(case: Case, cluster: Cluster, home: Path) -> None:
    """Wait until the job trains, and do what the case says to its nodes."""
    kind, _, names = case.action.partition(":")
    if kind != "kill":
        return
    deadline = time.monotonic() + PATIENCE_S
    while not has_trained(home, case.nodes) and time.monotonic() < deadline:
        time.sleep(0.5)
    if case.fault:
        time.sleep(3)  # the job is stuck now, and nobody has noticed yet
    for name in filter(None, names.split(",")):
        cluster.kill(name)


def has_trained(home: Path, nodes: int) -> bool:
    """Return whether some steps of all nodes have come home."""
    logs = list(home.glob("nodes/*/steps/rank_*.jsonl"))
    return len(logs) == 2 * nodes and all(len(log.read_bytes().splitlines()) > ACT_AT_STEP for log in logs)


def ask(home: Path) -> Answer:
    """Return what `workbench inspect` says of a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*WORKBENCH, "inspect", str(home), "--json", "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout:
        return Answer("none", (), done.stderr.strip(), ())
    verdict = json.loads(done.stdout)["verdict"]
    return Answer(verdict["class"], tuple(verdict["ranks"]), verdict["sentence"], tuple(verdict["missing"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--aside", action="store_true", help="the cases that were kept aside")
    parser.add_argument("--keep", type=Path, help="where to keep the folders of the nodes")
    asked = parser.parse_args()
    chosen = [case for case in CASES if case.name in asked.names or (not asked.names and case.aside == asked.aside)]
    right = 0
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            answer = run_case(case, (asked.keep or Path(folder)) / case.name)
        problems = answer.problems(case)
        right += not problems
        print(f"{'right' if not problems else 'WRONG'}  {case.name}: {answer.kind} {answer.ranks}: {answer.sentence}")
        print(f"       missing: {'; '.join(answer.missing) or 'nothing'}")
        for problem in problems:
            print(f"       {problem}")
    print(f"{right} of {len(chosen)} right")


if __name__ == "__main__":
    main()
