"""A recorder that records only the steps before each snapshot still knows what all other steps left in memory."""

import gc
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from analyzers import memory, run
from analyzers.memory.report import compare
from workbench.recorders.memory.cpu_history import LiveBlocks
from workbench.recorders.memory.live_tensors import LiveStorage
from workbench.recorders.memory.profiler_events import Allocation
from workbench.recorders.memory.recorder import MemoryRecorder

STEPS, MIB = 30, 1 << 20


class Kept:
    """What a script keeps: nothing, or a tensor of 1 MiB in some steps, in one of several ways."""

    def __init__(self) -> None:
        self.items = []

    def detached(self, out):
        self.items.append(out.detach().clone())

    def with_graph(self, out):
        self.items.append(out.exp().sum())  # a number, whose graph keeps the result of exp

    def packed(self, out):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
            self.items.append(out.exp().sum())


def unpack(_tensor):
    raise AssertionError("a hook of the script was called")


def record(folder, keep=None, steps=range(1, STEPS + 1), window=2):
    """Return the snapshots of a run that calls `keep` with a tensor of 1 MiB in `steps`; one is due every 10 steps."""
    gc.collect()  # what other tests left must not be freed in mid-run
    torch.manual_seed(0)
    model = nn.Linear(256, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = MemoryRecorder(folder, model, optimizer, freq=10, window=window)
    for step in range(1, STEPS + 1):
        with recorder.step(step):
            out = model(torch.randn(256, 256))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in steps and keep:
                keep(out)
    recorder.close()
    return run.discover(folder).of(run.Kind.SNAPSHOT)


def ends(snapshots):
    devices = memory.analyze(snapshots).data.devices
    assert all(device.consistent for device in devices)
    return [device.end_allocated_bytes for device in sorted(devices, key=lambda device: device.step)]


@pytest.mark.parametrize("keep", ["detached", "with_graph", "packed"])
def test_what_unrecorded_steps_left_is_in_the_next_snapshot(tmp_path, keep):
    levels = ends(record(tmp_path, getattr(Kept(), keep)))
    growth = [later - earlier for earlier, later in itertools.pairwise(levels)]
    assert growth == pytest.approx([10 * MIB] * 2, rel=0.01)


def test_memory_that_was_there_from_the_beginning_is_no_growth(tmp_path):
    dataset = torch.randn(8, MIB // 4)
    array = torch.from_numpy(np.zeros(MIB, np.float32))
    first, second, third = ends(record(tmp_path))
    assert first == pytest.approx(second, abs=MIB // 64)
    assert third == pytest.approx(second, abs=MIB // 64)
    assert first > dataset.nbytes
    assert first < dataset.nbytes + array.nbytes  # PyTorch did not allocate it


def test_growth_that_no_window_shows_is_a_leak(tmp_path):
    kept = Kept()
    report = memory.analyze(record(tmp_path, lambda out: kept.items.append(out.new_ones(4, MIB)), range(1, 31, 10)))
    [leak] = [finding for finding in report.findings if finding.id == "memory.leak"]
    assert "1.6 MiB per step" in leak.title


def test_a_window_whose_step_replaces_the_tensors_is_healthy(tmp_path):
    kept = Kept()

    def keep(out):
        kept.items = [*kept.items[-5:], out.detach().clone()]

    assert memory.analyze(record(tmp_path, keep)).verdict.kind == "healthy"


def test_two_snapshots_of_one_run_show_what_grew(tmp_path):
    snapshots = sorted(record(tmp_path, Kept().detached, window=5), key=lambda snapshot: snapshot.step)
    difference, [finding] = compare(snapshots[:1], snapshots[-1:])
    assert difference.bytes == pytest.approx(20 * MIB, rel=0.02)
    assert finding.id == "compare.memory.grew"
    assert "from step 10 to step 30" in finding.title
    assert finding.next.startswith("Find what keeps the tensors of ")
    assert "checkpointing" not in finding.next


def test_the_recorder_keeps_nothing_alive(tmp_path):
    class Watched(torch.Tensor):
        """A class of the script's, none of whose operators or properties is called."""

        alive = 0

        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError("an operator of the script's class was called")

        def __del__(self):
            Watched.alive -= 1

    own = torch.Tensor._make_subclass(Watched, torch.ones(MIB))
    Watched.alive = 1

    def keep(_out):
        nonlocal own
        own = None
        assert not Watched.alive

    record(tmp_path, keep, [25])


@pytest.mark.parametrize("later", [100, 164, 200])
def test_of_two_blocks_that_overlap_the_later_one_lives(later):
    """The earlier one was freed unseen, be it at the lower address or not; a third block beside them stays."""
    blocks = LiveBlocks(2)
    blocks.add_found([LiveStorage(164, 100, "old"), LiveStorage(400, 100, "beside")])
    session = SimpleNamespace(allocations=[Allocation(1000, later, 100, [])])
    blocks.add_session(session, [])
    assert sorted(blocks.live) == [later, 400]
    assert [(event.action, event.block.address) for event in blocks.events()].count(("free_completed", 164)) == 1
