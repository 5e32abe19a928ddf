"""A rank that runs out of memory is first compared with the ranks that did not."""

import pytest

from analyzers import memory

MIB = 1 << 20
STATE = 100 * MIB
LINES = ("attention", "mlp", "head")


class Ranks:
    """Snapshots of four ranks, of which the last one fails; `changes` are arguments of `train` for this rank."""

    def __init__(self, maker):
        self.maker, self.files = maker, []

    def stack(self, name, *outer):
        files = dict.fromkeys(LINES, "/job/model.py")
        names = (name, *outer, "main")
        return [self.maker.frame(one, files.get(one, "/job/train.py"), len(one)) for one in names]

    def train(self, rank, *, scale=None, copies=1, extra=(), state=STATE, fails=False, steps=3, limit=None, until=3):
        made = self.maker.Recording(segment_bytes=4 << 30)
        made.older(state)
        for step in range(1, steps + 1):
            made.note(f"step#{step}", "START")
            last = fails and step == steps
            sizes = {name: int(20 * MIB * (scale or {}).get(name, 1) if last else 20 * MIB) for name in LINES}
            asked = [pair for _ in range(copies if last else 1) for pair in sizes.items()]
            failed = asked.pop() if last else None
            live = [made.alloc(size, self.stack(name)) for name, size in asked]
            live += [made.alloc(size, self.stack(*names)) for size, *names in (extra if last else ())]
            if failed:
                made.oom(failed[1], 2 * MIB, self.stack(failed[0]))
                break
            for address in live:
                made.free(address)
            made.note(f"step#{step}", "END")
        snapshot = made.snapshot()
        if limit is not None:
            reserved(snapshot["segments"], limit)
        name = f"rank{rank}_memory_snapshot.pickle"
        self.files.append(self.maker.save(snapshot, name, "iteration_2_exit" if fails else f"iteration_{until}"))

    def advice(self, until=3, **changes):
        for rank in range(3):
            self.train(rank, limit=changes.get("limit") and 4 << 30, until=until)
        self.train(3, fails=True, **changes)
        report = memory.analyze(self.files)
        return next(finding for finding in report.findings if finding.id == "memory.oom"), report.data.devices


def reserved(segments, total):
    """Give the one segment of a snapshot this size."""
    [segment] = segments
    segment["blocks"][-1]["size"] += total - segment["total_size"]
    segment["total_size"] = total


@pytest.fixture
def ranks(maker):
    return Ranks(maker)


def test_larger_tensors_in_all_lines_are_a_larger_batch(ranks):
    finding, devices = ranks.advice(scale=dict.fromkeys(LINES, 3))
    assert finding.next.startswith("First check the batch of rank 3 in the failing step: its tensors are about 3 times")
    [difference] = [device.oom.difference for device in devices if device.oom]
    assert (difference.kind, difference.ranks, difference.is_new) == ("batch", [0, 1, 2], True)
    sentence = memory.analyze(ranks.files).verdict.sentence
    assert sentence.endswith("; its tensors are about 3 times as large as any of the 3 other ranks (ranks 0-2)")


def test_larger_tensors_in_some_lines_are_those_of_a_part(ranks):
    finding, _ = ranks.advice(scale={"mlp": 4})
    assert finding.next.startswith("First check why rank 3 gets more in mlp (/job/model.py:3)")
    assert "experts" in finding.next


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("mlp", "evaluate"), "Evaluate under torch.no_grad()"),
        (("cat", "save_checkpoint"), "Save shards"),
        (("clone", "update_ema"), "Keep the average on the CPU"),
        (("lm_head",), "last pipeline stage"),
        (("tune",), "spread it over all ranks"),
    ],
)
def test_lines_that_no_other_rank_ran_are_named(ranks, names, words):
    finding, _ = ranks.advice(extra=[(200 * MIB, *names)])
    assert finding.next.startswith(f"First look at {names[-1]} (/job/train.py:")
    assert "and no other rank ran it." in finding.next
    assert words in finding.next


def test_lines_are_not_said_to_be_those_of_one_rank_where_the_others_were_recorded_before(ranks):
    finding, _ = ranks.advice(until=2, extra=[(200 * MIB, "mlp", "evaluate")])
    assert "no other rank" not in finding.next
    assert "the recordings of the 3 other ranks (ranks 0-2) end with step 2." in finding.next


def test_a_batch_may_be_large_everywhere_where_the_others_were_recorded_before(ranks):
    finding, _ = ranks.advice(until=2, scale=dict.fromkeys(LINES, 3))
    assert finding.next.startswith("First check why the batch of rank 3 in the failing step is so large")


def test_more_tensors_of_the_same_size_are_microbatches_in_flight(ranks):
    finding, _ = ranks.advice(copies=3)
    assert "3 times as many tensors of the same size alive" in finding.next
    assert "fewer microbatches" in finding.next


def test_more_tensors_and_more_state_are_more_layers(ranks):
    finding, _ = ranks.advice(copies=3, state=3 * STATE)
    assert finding.next.startswith("First compare the part of the model on rank 3")


def test_a_device_of_which_pytorch_gets_less_is_used_by_something_else(ranks):
    finding, _ = ranks.advice(limit=2 << 30)
    assert finding.next.startswith("First find out what else uses the device of rank 3")


@pytest.mark.parametrize("changes", [{}, {"scale": {"mlp": 1.1}}, {"extra": [(1 * MIB, "log")]}])
def test_ranks_that_are_alike_are_not_mentioned(ranks, changes):
    finding, devices = ranks.advice(**changes)
    assert "other ranks" not in finding.next
    assert all(not device.oom.difference for device in devices if device.oom)


def test_growth_from_step_to_step_comes_before_what_other_ranks_do(maker, ranks):
    for rank in range(3):
        ranks.train(rank)
    made = maker.Recording(segment_bytes=4 << 30)
    for step in range(1, 9):
        made.note(f"step#{step}", "START")
        made.alloc(60 * MIB, ranks.stack("log"))
        made.free(made.alloc(20 * MIB, ranks.stack("mlp")))
        made.note(f"step#{step}", "END")
    made.oom(50 * MIB, 2 * MIB, ranks.stack("mlp"))
    failed = maker.save(made.snapshot(), "rank3_memory_snapshot.pickle", "iteration_8_exit")
    report = memory.analyze([*ranks.files, failed])
    assert next(f for f in report.findings if f.id == "memory.oom").next.startswith("Find what keeps")
