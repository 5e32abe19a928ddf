"""Small traces with known content, in the layouts that PyTorch writes."""

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from analyzers import run
from analyzers.columns import UnsavedColumns
from analyzers.traces import digest
from analyzers.traces.model import RankTrace
from analyzers.traces.reading.trace import Trace
from wild import recorded

BASE_NS = 1_790_857_026_000_000_000


def microseconds(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass
class Tracing:
    """Collects events in integer nanoseconds; `write` writes them to a file in PyTorch's format."""

    rank: int | None = 0
    world: int = 1
    backend: str = "nccl"
    events: list = field(default_factory=list)
    correlation: int = 0

    def event(self, name, cat, start, dur, *, pid=4000, tid=4000, **args):
        where = {"pid": pid, "tid": tid, "args": args}
        self.events.append({"ph": "X", "name": name, "cat": cat, "ts": start, "dur": dur} | where)

    def memory(self, at, size, address, *, dur=None, pid=4000, tid=4000, device=(1, 0), **totals):
        """Add an allocation, or a free if the size is negative; with `dur` in the format of the exporter written in
        Python.
        """
        args = {"Addr": address, "Bytes": size, "Device Type": device[0], "Device Id": device[1]}
        args |= {f"Total {name.capitalize()}": total for name, total in totals.items()}
        how = {"ph": "i", "s": "t"} if dur is None else {"ph": "X", "dur": dur}
        what = {"name": "[memory]", "cat": "cpu_instant_event", "ts": at, "pid": pid, "tid": tid}
        self.events.append(how | what | {"args": args})

    def kernel(self, name, start, dur, launch=None, *, device=0, stream=7, cat="kernel", **args):
        self.correlation += 1
        if launch is not None:
            self.event("cudaLaunchKernel", "cuda_runtime", *launch, correlation=self.correlation)
        args |= {"correlation": self.correlation, "device": device, "stream": stream}
        self.event(name, cat, start, dur, pid=device, tid=stream, **args)

    def step(self, number, start, dur):
        self.event(f"ProfilerStep#{number}", "user_annotation", start, dur)

    def text(self, *, base=True, late=False, compact=False, after=0):
        """Return the file's text; `late` puts the header behind the events, `after` adds ns to every start."""
        header = {"schemaVersion": 1, "deviceProperties": []}
        if self.rank is not None:
            header["distributedInfo"] = {"backend": self.backend, "rank": self.rank, "world_size": self.world}
        if base:
            header["baseTimeNanoseconds"] = BASE_NS
        rows = [json.dumps(e, indent=None if compact else 2) for e in self.events]
        for i, e in enumerate(self.events):
            rows[i] = rows[i].replace(f'"ts": {e["ts"]}', f'"ts": {microseconds(e["ts"] + after)}')
            if "dur" in e:
                rows[i] = rows[i].replace(f'"dur": {e["dur"]}', f'"dur": {microseconds(e["dur"])}')
        head, tail = json.dumps(header)[1:-1], '"traceName": "x"'
        body = '"traceEvents": [' + (",\n" if compact else "\n  ,\n  ").join(rows) + "]"
        parts = [body, head, tail] if late else [head, body, tail]
        return ("{" + ",\n".join(parts) + "}").encode()


def busy_day(seed, count=60, devices=1):
    """Return a trace of random kernels and copies over three steps; some are linked to the calls that launched them."""
    dice, made = random.Random(seed), Tracing()
    names = [
        ("gemm", "kernel"),
        ("ncclDevKernel_AllReduce", "kernel"),
        ("Memcpy HtoD", "gpu_memcpy"),
        ("set", "gpu_memset"),
    ]
    for number in range(3):
        made.step(10 + number, number * 1_000_000, 900_000)
    for _ in range(count):
        name, cat = dice.choice(names)
        start = dice.randrange(3_500_000)
        call = (max(0, start - dice.randrange(50_000)), dice.randrange(1, 20_000)) if dice.random() < 0.8 else None
        made.kernel(name, start, dice.randrange(200_000), call, device=dice.randrange(devices), cat=cat)
    return made


@dataclass
class Maker:
    folder: Path
    Tracing = Tracing
    busy_day = staticmethod(busy_day)

    def save(self, data, name="rank0_trace.json", step="iteration_10"):
        path = self.folder / step / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return self.artefact(path)

    def opened(self, data, name="rank0_trace.json"):
        """Return the trace as the reader returns it, but read without a child process; `meta` of the columns has its
        accounts.
        """
        return Trace(UnsavedColumns(*digest.read([self.save(data, name).path])))

    def accounts(self, data, name="rank0_trace.json"):
        return [msgspec.convert(one, RankTrace) for one in self.opened(data, name).columns.meta["accounts"]]

    def problems(self, data, name="rank0_trace.json"):
        """Return the kinds of problems in each account, with their numbers."""
        accounts = self.opened(data, name).columns.meta["account_problems"]
        return [{one["kind"]: one for one in problems} for problems in accounts]

    @staticmethod
    def artefact(path):
        return run.Artefact(path, run.Kind.TRACE, run.rank_of(path), run.step_of(path)[0], bytes=path.stat().st_size)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


@pytest.fixture
def real_traces():
    return [Maker.artefact(path) for path in sorted(recorded("traces").rglob("*.json*"))]


def swept(events):
    """Return the parts of the time of (start, end, kind) events, computed one interval at a time."""
    sums = dict.fromkeys(("busy", "compute", "communication", "memory", "exposed", "overlapped", "exposed_memory"), 0)
    if not events:
        return sums | {"span": 0}
    changes = sorted([(start, 1, kind) for start, _, kind in events] + [(end, -1, kind) for _, end, kind in events])
    running, before = {"compute": 0, "communication": 0, "memory": 0}, changes[0][0]
    for at, change, kind in changes:
        on = {name for name, count in running.items() if count}
        passed, before = at - before, at
        for name in on:
            sums[name] += passed
        sums["busy"] += passed * bool(on)
        sums["exposed"] += passed * ("communication" in on and "compute" not in on)
        sums["overlapped"] += passed * ({"communication", "compute"} <= on)
        sums["exposed_memory"] += passed * (on == {"memory"})
        running[kind] += change
    return sums | {"span": changes[-1][0] - changes[0][0]}


@pytest.fixture
def oracle():
    return swept
