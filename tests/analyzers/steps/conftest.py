"""Simulated jobs whose ranks meet in collectives, so that it is known exactly which rank delays which."""

import gc
import importlib
import json
import random

import pytest

from analyzers import cached_columns, run, store

MS = 1_000_000
BASE_NS = 1_800_000_000 * 1_000_000_000
USUAL_MS = {"gc": 0.0, "data_wait": 3.0, "h2d": 1.0, "fwd": 30.0, "bwd": 60.0, "optim": 8.0, "log": 0.5}
MEETS = ("bwd",)


class Job:
    """A simulated job. `meets` lists the phases whose end all ranks reach together."""

    def __init__(self, folder, *, ranks=4, steps=40, noise=0.02, seed=0, device="cpu", meets=MEETS):
        self.folder, self.ranks, self.steps, self.device, self.meets = folder, ranks, steps, device, meets
        self.noise, self.random = noise, random.Random(seed)
        self.hosts = ["vm"] * ranks
        self.rows = {}
        self.work = {}

    def run(self, more=lambda rank, step: {}, **fields):
        """Simulate the steps; `more(rank, step)` is {phase: ms} of additional work, `fields` are functions for other
        values.

        `work[step][rank]` stores the local ms by phase.
        """
        clock = [0.0] * self.ranks
        self.rows = {rank: [] for rank in range(self.ranks)}
        for step in range(1, self.steps + 1):
            local = [self.local(more(rank, step)) for rank in range(self.ranks)]
            self.work[step] = local
            began, wall = list(clock), [{} for _ in local]
            for phase in USUAL_MS:
                ends = [clock[r] + local[r][phase] for r in range(self.ranks)]
                ends = [max(ends)] * self.ranks if phase in self.meets else ends
                for rank in range(self.ranks):
                    wall[rank][phase] = ends[rank] - clock[rank]
                clock = ends
            for rank in range(self.ranks):
                told = {name: f(rank, step) for name, f in fields.items()}
                self.rows[rank].append(self.line(step, began[rank], wall[rank], local[rank], told))
        return self.written()

    def local(self, more):
        return {
            phase: usual * (1 + self.noise * self.random.gauss(0, 1)) + more.get(phase, 0.0)
            for phase, usual in USUAL_MS.items()
        }

    def line(self, step, began, wall, local, told):
        phases = {name: round(ms * MS) for name, ms in wall.items()}
        dur = sum(phases.values()) + MS
        told = {"start_ns": BASE_NS + round(began * MS), "dur_ns": dur} | told
        compute = {name: round(ms * MS) for name, ms in local.items() if name in ("fwd", "bwd", "optim")}
        return {
            "step": step,
            "phases": phases,
            "cpu_ns": compute if self.device == "cpu" else {},
            "device_ns": {name: phases[name] for name in compute} if self.device == "cuda" else {},
            "residual_ns": MS,
            "tokens": 1000,
            "loss": 5.0 - step / 100,
            "grad_norm": 1.0,
            "memory_bytes": 1 << 30,
            "tags": ["first"] if step == 1 else [],
        } | told

    def written(self):
        """Write the step logs, and return them as files of a run."""
        (self.folder / "steps").mkdir(exist_ok=True)
        for rank, rows in self.rows.items():
            header = {
                "schema": "workbench.steps/1", "rank": rank, "world_size": self.ranks, "device": self.device,
                "host": self.hosts[rank], "attempt": 0, "started_ns": BASE_NS - 5000 * MS,
            }  # fmt: skip
            text = "".join(json.dumps(row) + "\n" for row in [header, *rows])
            (self.folder / "steps" / f"rank_{rank}.jsonl").write_text(text)
        return run.discover(self.folder).artefacts


@pytest.fixture
def here(monkeypatch):
    """Fixture: read files in this process, which takes a tenth of the time; other tests cover the child process."""

    def read(paths, reader, target, _max_memory):
        cached_columns.write_entry(target, *importlib.import_module(reader).read(list(paths)))

    monkeypatch.setattr(store, "read_in_child", read)
    yield
    gc.enable()


@pytest.fixture
def job(tmp_path, here):
    """Fixture: `job(ranks=4, ...)` returns a `Job` in the test's folder."""
    return lambda **options: Job(tmp_path, **options)
