"""Allocations and frees in traces, compared with plain loops over the JSON."""

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from analyzers.traces import views
from analyzers.traces.columns import PHASE_NAMES, PHASE_PATTERNS, phase_of
from analyzers.traces.costs import is_user_function

RECORDED = Path(__file__).parents[2] / "fixtures" / "traces" / "allocating"
USUAL, STREAMED = RECORDED / "rank0_trace.json.gz", RECORDED / "streamed.json.gz"
HOST = {"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "overhead"}
FIELDS = ("allocations", "frees", "allocated_bytes", "freed_bytes", "net_bytes")


def ns(microseconds):
    return round(float(f"{microseconds % 1:.3f}") * 1000) + int(microseconds // 1) * 1000


class Loops:
    """Computes the results for a device with plain loops over the events."""

    def __init__(self, document, device):
        self.base = document.get("baseTimeNanoseconds", 0)
        host = [e for e in document["traceEvents"] if e["ph"] == "X" and e.get("cat") in HOST]
        self.host = [
            SimpleNamespace(
                name=e["name"], cat=e["cat"], place=(e["pid"], e["tid"]), start=ns(e["ts"]),
                end=ns(e["ts"]) + ns(e["dur"]), args=e.get("args") or {},
            )
            for e in host
        ]  # fmt: skip
        self.steps = sorted(
            (e.start, e.end, int(e.name.split("#")[1])) for e in self.host if e.name.startswith("ProfilerStep#")
        )
        found = [e for e in document["traceEvents"] if e.get("name") == "[memory]"]
        mine = [e for e in found if (e["args"]["Device Type"], e["args"]["Device Id"]) == device]
        self.events = [self.told(e) for e in sorted(mine, key=lambda e: ns(e["ts"]))]
        self.pair()

    def told(self, event):
        at, args = ns(event["ts"]), event["args"]
        around = [e for e in self.host if e.place == (event["pid"], event["tid"]) and e.start <= at < e.end]
        around.sort(key=lambda e: (e.start, -e.end))  # what began last is innermost
        ops = [e for e in around if e.cat == "cpu_op"]
        modules = [e for e in around if e.name.startswith("nn.Module: ")] or self.forward_modules(ops)
        lines = [e for e in around if e.cat == "python_function" and own(e.name)]
        phases = [phase_of(e.name) for e in around if e.cat in {"cpu_op", "user_annotation"}]
        told = [number for number in phases if number < len(PHASE_PATTERNS)]
        return SimpleNamespace(
            at=at,
            size=args["Bytes"],
            address=args["Addr"],
            allocated=args.get("Total Allocated", 0),
            reserved=args.get("Total Reserved", 0),
            step=next((number for start, end, number in self.steps if start <= at < end), None),
            phase=PHASE_NAMES[told[-1]] if told else "other",
            operator=[e.name for e in ops],
            module=[e.name.removeprefix("nn.Module: ") for e in modules],
            line=[e.name for e in lines],
            free=None,
            born=None,
        )

    def forward_modules(self, ops):
        """Return the modules around the forward operator whose sequence number a backward operator has."""
        numbered = [e.args for e in ops if e.args.get("Fwd thread id", 0) > 0]
        for args in reversed(numbered):
            ahead = [e for e in self.host if e.args.get("Sequence number", -1) == args["Sequence number"]]
            for one in reversed([e for e in ahead if e.args.get("Fwd thread id", 0) <= 0]):
                outer = [e for e in self.host if e.name.startswith("nn.Module: ") and e.place == one.place]
                if found := sorted((e for e in outer if e.start <= one.start < e.end), key=lambda e: e.start):
                    return found
        return []

    def pair(self):
        alive = {}
        for event in self.events:
            if event.size < 0 and event.address in alive:
                event.born = alive.pop(event.address)
                event.born.free = event
            elif event.size > 0:
                alive[event.address] = event

    def by(self, what):
        sums = defaultdict(
            lambda: dict.fromkeys((*FIELDS, "own_allocations", "own_allocated_bytes", "own_net_bytes"), 0)
        )
        for event in self.events:
            names = getattr(event, what)
            for name in set(names):
                add(sums[name], event.size)
            if names:
                own = sums[names[-1]]
                own["own_allocations"] += event.size > 0
                own["own_allocated_bytes"] += max(0, event.size)
                own["own_net_bytes"] += event.size
        return dict(sums)

    def answers(self, found):
        """Return all numbers of `found` (a DeviceMemory) that the loops compute."""
        total = dict.fromkeys(FIELDS, 0)
        for event in self.events:
            add(total, event.size)
        assert {name: getattr(found, name) for name in FIELDS} == total
        assert found.start_bytes == self.events[0].allocated - self.events[0].size
        assert found.end_bytes == self.events[-1].allocated == found.start_bytes + found.net_bytes
        for what in ("operator", "module", "line"):
            expected = self.by(what)
            listed = {one.name: fields(one) for one in getattr(found, f"{what}s")}
            assert listed == {name: expected[name] for name in listed}
            assert len(listed) == min(100, len(expected))
        self.moments(found)
        self.kept(found)
        for step in found.steps:
            inside = [e for e in self.events if e.step == step.step]
            assert step.net_bytes == sum(e.size for e in inside) == step.end_bytes - step.start_bytes
            assert step.peak_bytes == max([step.start_bytes, *(e.allocated for e in inside)])
        phases = defaultdict(int)
        for event in self.events:
            phases[event.phase] += event.size
        assert not found.phases or {one.name: one.net_bytes for one in found.phases} == dict(phases)

    def moments(self, found):
        highest = max(self.events, key=lambda e: e.allocated)
        if highest.allocated >= found.start_bytes:
            assert found.peak.bytes == highest.allocated
            self.same_place(found.peak, highest)
        reserved = max(self.events, key=lambda e: e.reserved)
        assert found.reserved_peak.bytes == reserved.reserved if reserved.reserved else not found.reserved_peak
        largest = sorted((e for e in self.events if e.size > 0), key=lambda e: -e.size)[:20]
        assert [one.bytes for one in found.largest] == [e.size for e in largest]
        for one, event in zip(found.largest, largest, strict=True):
            self.same_place(one, event)
            assert one.lifetime_ns == (event.free.at - event.at if event.free else None)
            assert one.freed_by == (last(event.free.operator) if event.free else "")

    def same_place(self, moment, event):
        assert moment.at_ns == event.at + self.base
        mine = moment.step, moment.phase, moment.operator, moment.module, moment.line
        assert mine == (event.step, event.phase, last(event.operator), last(event.module), last(event.line))

    def kept(self, found):
        lost = [e for e in self.events if e.size > 0 and e.free is None]
        assert (found.unfreed_allocations, found.unfreed_bytes) == (len(lost), sum(e.size for e in lost))
        assert found.older_freed_bytes == -sum(e.size for e in self.events if e.size < 0 and e.born is None)
        places = defaultdict(int)
        for event in lost:
            places[last(event.operator), last(event.module), last(event.line)] += event.size
        mine = {(one.operator, one.module, one.line): one.bytes for one in found.unfreed}
        assert mine == dict(places) or len(mine) == 20


def own(name):
    """Return whether a function is user code."""
    return is_user_function(name)


def fields(struct):
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if name != "name"}


def add(sums, size):
    sums["allocations"] += size > 0
    sums["frees"] += size < 0
    sums["allocated_bytes"] += max(0, size)
    sums["freed_bytes"] += max(0, -size)
    sums["net_bytes"] += size


def last(names):
    return names[-1] if names else ""


def device_of(memory, document):
    """Return the numbers that the profiler recorded for a device."""
    types = {"cpu": 0, "cuda": 1, "hip": 6}
    told = {
        (e["args"]["Device Type"], e["args"]["Device Id"]) for e in document["traceEvents"] if e["name"] == "[memory]"
    }
    return next(one for one in told if one[0] == types[memory.type] and memory.device in (one[1], None))


def check(text, accounts):
    """Compare all devices of a file with the loops; return the number of devices."""
    document = json.loads(text)
    held = [memory for account in accounts for memory in account.device_memory]
    for memory in held:
        Loops(document, device_of(memory, document)).answers(memory)
    return len(held)


@pytest.mark.parametrize("path", [USUAL, STREAMED], ids=["usual", "streamed"])
def test_a_recording_agrees_with_plain_loops(maker, path):
    text = gzip.decompress(path.read_bytes())
    assert check(text, maker.accounts(text)) == 1


def test_what_a_recording_tells(maker):
    [account] = maker.accounts(gzip.decompress(USUAL.read_bytes()))
    [memory] = account.device_memory
    assert (memory.type, memory.device, memory.totals_recorded, memory.reserved_peak) == ("cpu", None, True, None)
    assert [step.net_bytes for step in memory.steps] == [65536] * 3
    assert (memory.peak.step, memory.peak.phase, memory.peak.module) == (2, "backward", "Linear_0")
    [kept] = memory.unfreed
    assert (kept.count, kept.bytes, "remember" in kept.line) == (3, 3 * 65536, True)


def test_both_exporters_give_the_same(maker):
    usual, streamed = (maker.opened(gzip.decompress(path.read_bytes())) for path in (USUAL, STREAMED))
    for name in ("address", "bytes", "allocated", "at", "device"):
        assert usual.columns[f"memory_{name}"].tolist() == streamed.columns[f"memory_{name}"].tolist()
    assert len(usual.columns["start"]) == len(streamed.columns["start"])  # an allocation does not last
    one, other = (trace.columns.meta["accounts"][0] for trace in (usual, streamed))
    assert one["device_memory"] == other["device_memory"]
    assert one["span_ns"] == other["span_ns"]


@pytest.mark.real
def test_real_devices_agree_with_plain_loops(real_traces, maker):
    checked = 0
    for artefact in real_traces:
        data = artefact.path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if b'"[memory]"' in text and len(text) < 16 << 20:
            checked += check(text, maker.accounts(text))
    assert checked >= 4


def busy(made, seed, *, totals=True):
    """Add nested operators, and random allocations and frees inside them on two devices."""
    dice = random.Random(seed)
    for number in range(3):
        made.step(number, number * 10_000, 9_000)
    for at in range(100, 29_000, 500):
        made.event(dice.choice(["aten::mm", "aten::add"]), "cpu_op", at, 400, tid=4000 + dice.randrange(2))
        if dice.random() < 0.5:
            made.event("aten::empty", "cpu_op", at + 100, 200)
    held, alive = {(1, 0): 5_000, (0, -1): 300}, {(1, 0): [(77, 5_000)], (0, -1): [(78, 300)]}
    for at in sorted(dice.sample(range(30_000), 120)):
        device = dice.choice(list(held))
        size, address = dice.randrange(1, 1000), dice.randrange(1, 1 << 64)
        if alive[device] and dice.random() < 0.5:
            address, size = alive[device].pop(dice.randrange(len(alive[device])))
            size = -size
        elif alive[device] and dice.random() < 0.1:
            address = alive[device][0][0]  # its free was not noted
        if size > 0:
            alive[device].append((address, size))
        held[device] += size
        told = {"allocated": held[device], "reserved": 2 * held[device] if device[0] else 0} if totals else {}
        duration = dice.choice([None, 30_000 - at])
        made.memory(at, size, address, device=device, dur=duration, tid=4000 + dice.randrange(2), **told)
    return made


@pytest.mark.parametrize("seed", range(12))
def test_random_days_agree_with_plain_loops(maker, seed):
    text = busy(maker.Tracing(), seed).text()
    assert check(text, maker.accounts(text)) == 2


@pytest.mark.parametrize("window", [None, (2_000, 9_000), (40_000, 50_000)])
@pytest.mark.parametrize("width", [1, 7, 500])
def test_the_curve_keeps_every_peak(maker, window, width):
    text = busy(maker.Tracing(), 5).text()
    artefact = maker.save(text)
    frame = views.memory(artefact, window=window, width=width)
    made = json.loads(text)["traceEvents"]
    moments = [ns(e["ts"]) for e in made] + [ns(e["ts"]) + ns(e["dur"]) for e in made if e["name"] != "[memory]"]
    begin, end = window or (min(moments), max(moments) + 1)
    for name, device in (("cpu", (0, -1)), ("cuda 0", (1, 0))):
        mine, events = frame[frame["where"] == name], Loops(json.loads(text), device).events
        edges = [begin + (end - begin) * i // width for i in range(width + 1)]
        assert mine["at_ns"].tolist() == edges[:-1]
        for low, high, allocated, reserved in zip(edges, edges[1:], mine["allocated"], mine["reserved"], strict=False):
            before = [e for e in events if e.at < low]
            held = [e for e in events if low <= e.at < high] + before[-1:]
            first = [] if before else [events[0].allocated - events[0].size]
            assert allocated == max([*first, *(e.allocated for e in held)])
            assert not held or reserved == max(e.reserved for e in held)


def test_a_trace_without_allocations_has_no_curve(maker):
    assert not len(views.memory(maker.save(maker.busy_day(1).text())))


def test_without_totals_the_changes_are_added_up(maker):
    text = busy(maker.Tracing(), 3, totals=False).text()
    for memory in maker.accounts(text)[0].device_memory:
        device = device_of(memory, json.loads(text))
        held, lowest, highest = 0, 0, 0
        for event in Loops(json.loads(text), device).events:
            held += event.size
            lowest, highest = min(lowest, held), max(highest, held)
        assert not memory.totals_recorded
        assert (memory.start_bytes, memory.peak.bytes) == (-lowest, highest - lowest)


def test_a_total_that_is_missing_is_reckoned(maker):
    made = maker.Tracing()
    made.event("aten::mm", "cpu_op", 0, 1000)
    made.memory(10, 100, 1)
    made.memory(20, 200, 2, allocated=1300, reserved=4000)
    made.memory(30, 50, 3)
    made.memory(40, -100, 1, allocated=1250)
    [account] = maker.accounts(made.text())
    [memory] = account.device_memory
    assert (memory.start_bytes, memory.peak.bytes, memory.end_bytes) == (1000, 1350, 1250)
    assert memory.reserved_peak.bytes == 4000


def test_each_device_is_with_its_account(maker):
    made = maker.Tracing()
    for device in (0, 1):
        made.kernel("gemm", 1000, 500, (0, 10), device=device)
        made.memory(5, 100 + device, 1, device=(6, device))
    made.memory(6, 7, 1, device=(0, -1))
    found = [[(m.type, m.device, m.allocated_bytes) for m in one.device_memory] for one in maker.accounts(made.text())]
    assert found == [[("cpu", None, 7), ("hip", 0, 100)], [("hip", 1, 101)]]


def test_odd_events_do_no_harm(maker):
    made = maker.Tracing()
    made.event("aten::mm", "cpu_op", 0, 1000)
    made.memory(5, 1 << 70, 1 << 80, allocated=1 << 90)
    made.memory(5, 64, -3, pid="Spans", tid="")
    made.memory(5, -64, (1 << 64) - 3)
    made.events.append({"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 7, "pid": 1, "tid": 1})
    made.events.append({"ph": "i", "name": "[OutOfMemory]", "cat": "cpu_instant_event", "ts": 8, "args": {"Bytes": 1}})
    [account] = maker.accounts(made.text())
    [memory] = account.device_memory
    assert (memory.allocations, memory.frees, memory.unfreed_bytes) == (1, 1, 0)
    assert account.device_events == 1


def test_a_trace_without_any_tells_nothing(maker):
    made = maker.busy_day(1)
    assert [one.device_memory for one in maker.accounts(made.text())] == [[]]
