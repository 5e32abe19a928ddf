"""Real gloo jobs for `hangs.py`: small training loops over the groups of a mesh, with one fault each.

The parent process imports torch once and forks the ranks of every job. Each rank is a plain script as users write them,
with the two lines that attach our recorders.
"""

import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.utils.data import DataLoader, Dataset

from workbench import recorders
from workbench.recorders.hang.collector import once

STEPS, FAULT_STEP = 6, 4
HEALTHY_STEPS, STEP_S = 150, 0.02
TIMEOUT_S = 6.0
GIVE_UP_S = 40.0
SLOW_S = 0.5 * TIMEOUT_S
"""Seconds that a slow rank sleeps: it continues between the two requests for dumps, at 0.4 and 0.6 of the timeout."""
SHAPES = {4: (2, 2, 1), 6: (3, 2, 1), 8: (2, 2, 2)}
"""{world size: size of the dimensions (tp, dp, pp) of the mesh}."""
KINDS = ("default", "tp", "dp", "pp")
STATES = {
    "healthy": "its steps, nothing wrong",
    "stuck_loop": "a Python loop",
    "stuck_native": "a C++ loop, the GIL free",
    "stuck_sleep": "asleep",
    "stuck_gil": "a C call that holds the GIL",
    "stuck_lock": "a deadlock of Python locks",
    "stuck_loader": "a data loader whose worker hangs",
    "stuck_write": "a checkpoint's write that never ends",
    "stuck_backward": "a hook of the backward pass, on autograd's thread",
    "stopped": "stopped by SIGSTOP",
    "slow": "slow: it moves between the looks",
    "error": "ended by an exception",
    "memory": "out of memory",
    "kill": "killed by SIGKILL",
    "left": "left without an error",
}
"""States that a rank may be in while the others wait for it."""
CLASSES = {
    "stuck_loop": "host_stuck",
    "stuck_sleep": "host_stuck",
    "stuck_gil": "host_stuck",
    "stopped": "host_stuck",
    "stuck_native": "host_stuck",
    "stuck_lock": "host_stuck",
    "stuck_loader": "host_stuck",
    "stuck_write": "host_stuck",
    "stuck_backward": "host_stuck",
    "kill": "dead",
    "left": "dead",
    "error": "dead",
    "memory": "dead",
    "skipped": "skipped",
    "type": "mismatch",
    "empty": "mismatch",
    "order": "order_cycle",
    "no_send": "unmatched_p2p",
    "slow": "slow",
}


@dataclass(frozen=True)
class Job:
    """A job of `world` ranks; `fault` happens on `rank` before its operation in a group of kind `kind`."""

    world: int
    fault: str = "healthy"
    kind: str = "default"
    rank: int = 0

    @property
    def truth(self) -> set[tuple[str, tuple[int, ...]]]:
        return {(CLASSES[self.fault], (self.rank,))} if self.fault in CLASSES else set()

    def explains(self, found: set[tuple[str, tuple[int, ...]]]) -> bool:
        """Return whether the answer `found` is exactly the cause.

        If a host that waits for each collective swaps two of them, it hangs in the second. Nothing shows whether it
        would have issued the first one later, so an answer that the collective was left out is accepted.
        """
        return found == self.truth or (self.fault == "order" and found == {("skipped", (self.rank,))})


EVERYWHERE = ("stuck_loop", "stuck_sleep", "stuck_gil", "stopped", "slow", "error", "memory", "kill")
"""States that are tested in every kind of group; for all others one kind is enough."""


def jobs() -> Iterator[Job]:
    """Yield a job for every fault in every kind of group in which it can occur, on 4 to 8 ranks."""
    count = 0
    for fault in CLASSES:
        for kind in places_of(fault):
            worlds = (8,) if kind == "pp" or fault == "no_send" else (4, 6, 8)
            world = worlds[count % len(worlds)]
            count += 1
            yield Job(world, fault, kind, (5 * count) % world)
    for world in SHAPES:
        yield Job(world)


def places_of(fault: str) -> tuple[str, ...]:
    """Return the kinds of groups in which a fault has a single culprit.

    With two ranks that disagree, neither is the culprit, so a mismatch needs three members or earlier steps; a cycle
    needs two groups.
    """
    anywhere = KINDS if fault not in STATES or fault in EVERYWHERE else ("default",)
    return {"no_send": ("pp",), "order": ("tp", "dp", "pp")}.get(fault, anywhere)


def groups_of(shape: tuple[int, int, int], rank: int) -> dict[str, tuple[dist.ProcessGroup, list[int]]]:
    """Return this rank's groups. All ranks create all groups in the same order, as PyTorch requires."""
    tp, dp, pp = shape
    size = tp * dp * pp
    lists = {
        "tp": [list(range(first, first + tp)) for first in range(0, size, tp)],
        "dp": [list(range(p * dp * tp + t, (p + 1) * dp * tp, tp)) for p in range(pp) for t in range(tp)],
        "pp": [list(range(first, size, dp * tp)) for first in range(dp * tp)],
    }
    found = {"default": (dist.group.WORLD, list(range(size)))}
    for kind, members in lists.items():
        for ranks in members:
            group = dist.new_group(ranks, group_desc=f"mesh_{kind}")
            if rank in ranks:
                found[kind] = group, ranks
    return found


class Loop:
    """The training loop of one rank, which causes the job's fault if this rank is the faulty one."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.groups = groups_of(SHAPES[job.world], rank)
        self.mine = rank == job.rank
        self.step = 0

    def run(self) -> None:
        steps, pause_s = (STEPS, 0.0) if self.job.truth else (HEALTHY_STEPS, STEP_S)
        for self.step in range(1, steps + 1):
            time.sleep(pause_s)
            program = [self.layer, self.gather, self.exchange, self.norm, self.across]
            for kind, part in (("tp", self.layer), ("dp", self.gather), ("pp", self.across)):
                if self.strikes("order", kind):
                    program.remove(part)
                    program.insert(program.index(self.norm) + (kind != "pp"), part)
            for part in program:
                part()

    def strikes(self, fault: str, kind: str) -> bool:
        return self.mine and self.step == FAULT_STEP and (self.job.fault, self.job.kind) == (fault, kind)

    def layer(self) -> None:
        self.collective("tp", dist.all_reduce, torch.ones(4, 4))

    def gather(self) -> None:
        self.collective("dp", dist.all_reduce, torch.ones(8))

    def norm(self) -> None:
        self.collective("default", dist.all_reduce, torch.ones(1))

    def across(self) -> None:
        self.collective("pp", dist.all_reduce, torch.ones(2))

    def exchange(self) -> None:
        """Send from the first pipeline stage to the last."""
        group, ranks = self.groups["pp"]
        if len(ranks) < 2 or self.strikes("no_send", "pp"):
            return
        if self.rank == ranks[0]:
            dist.send(torch.ones(3), dst=ranks[-1], group=group)
        elif self.rank == ranks[-1]:
            dist.recv(torch.ones(3), src=ranks[0], group=group)

    def collective(self, kind: str, call: Callable[..., object], tensor: torch.Tensor) -> None:
        group, ranks = self.groups[kind]
        if len(ranks) < 2:
            return
        fault = self.job.fault if self.mine and self.step == FAULT_STEP and self.job.kind == kind else ""
        if fault == "skipped":
            return
        if fault == "type":
            dist.all_gather([torch.empty_like(tensor) for _ in ranks], tensor, group=group)
        elif fault == "empty":
            call(tensor[:0], group=group)
        else:
            BREAKS.get(fault, lambda: None)()
            call(tensor, group=group)


def fail() -> None:
    raise ValueError("a batch of no tokens")


def lock_twice() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire(timeout=GIVE_UP_S)


class Endless(Dataset[torch.Tensor]):
    """A data set whose first item never comes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        spin()
        return torch.ones(1)


def write_to_nobody() -> None:
    """Write to a pipe that nobody reads, which hangs like a broken storage system."""
    _read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as checkpoint:
        torch.save(torch.ones(1 << 20), checkpoint)


def stuck_in_backward() -> None:
    weights = torch.ones(4, requires_grad=True)
    weights.register_hook(lambda _: spin())
    weights.sum().backward()


def spin() -> None:
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        sum(range(1000))


BREAKS: dict[str, Callable[[], object]] = {
    "stuck_loop": spin,
    "stuck_native": lambda: torch.ones(1).expand(1 << 50).sum(),
    "stuck_sleep": lambda: time.sleep(GIVE_UP_S),
    "stuck_gil": lambda: ctypes.PyDLL(None).sleep(int(GIVE_UP_S)),
    "stuck_lock": lock_twice,
    "stuck_loader": lambda: next(iter(DataLoader(Endless(), num_workers=1))),
    "stuck_write": write_to_nobody,
    "stuck_backward": stuck_in_backward,
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "slow": lambda: time.sleep(SLOW_S),
    "error": fail,
    "memory": lambda: torch.empty(1 << 58),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "left": lambda: os._exit(0),
}
"""{name of a state: function that keeps a rank from its operation}."""


def rank_main(job: Job, rank: int, folder: Path) -> None:
    """Run the script of one rank."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job.world)}
    os.environ["LOCAL_WORLD_SIZE"] = str(job.world)
    output = os.open(folder / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    store = dist.FileStore(str(folder / ".store"), job.world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job.world, timeout=timedelta(seconds=TIMEOUT_S + 6)
    )
    attached = recorders.start(folder, timeout_s=TIMEOUT_S)
    try:
        Loop(job, rank).run()
    except BaseException as error:
        attached.flight.failed(error)
        raise
    dist.barrier()
    attached.close()


def run(job: Job, folder: Path) -> None:
    """Run a job to its end, or until its dumps have been taken."""
    folder.mkdir(parents=True)
    ranks = {fork(job, rank, folder): rank for rank in range(job.world)}
    codes: dict[str, int] = {}
    deadline = time.monotonic() + GIVE_UP_S
    if not job.truth:
        look_at_a_healthy_job(folder)
    while time.monotonic() < deadline and not collected(folder):
        for pid in list(ranks):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[str(ranks.pop(pid))] = os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    for pid in ranks:  # all at once: who sees another one go has time to say so
        os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
    (folder / "run.json").write_text(json.dumps({"world_size": job.world, "exit_codes": codes}))


def collected(folder: Path) -> bool:
    """Return whether the collector has completed both rounds of dumps."""
    try:
        collection = json.loads((folder / "dumps/collection.json").read_text())
    except (OSError, ValueError):
        return False
    return len(collection["rounds"]) == 2


def look_at_a_healthy_job(folder: Path) -> None:
    """Request dumps while the job is running, as `workbench hang --run` does."""
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline and not list((folder / "steps").glob("heartbeat_*.bin")):
        time.sleep(0.1)
    time.sleep(1.0)
    assert once(folder)


def fork(job: Job, rank: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        rank_main(job, rank, folder)
        code = 0
    finally:
        os._exit(code)


def warm_up() -> None:
    """Import in the parent all modules that the ranks would import; resolving stack frames needs hundreds of them."""
    import torch._dynamo

    assert torch._dynamo  # noqa: SLF001
    assert _distributed_c10d
